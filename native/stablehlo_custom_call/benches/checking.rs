//! What the rules cost: a module of one custom call with six attributes, built with them and without.
//!
//! `make bench-checking` runs it. The two take turns, so that whatever else the machine does meets both,
//! and the ratio is that of the medians.

use stablehlo_custom_call::{
    Block, Context, CustomCall, ElementType, Error, Function, Graph, Limits, Module, NamedText,
    Operation, OperationKind, Output, Parameter, Type,
};
use std::time::{Duration, Instant};

const TURNS: usize = 4_000;
const WARM_UP: usize = 400;

/// An attention kernel's call: attributes for the handler, layouts and a rule for the compiler.
fn attention() -> Graph<'static> {
    let text = |name: &'static str, text: &'static str| NamedText {
        name: name.as_bytes(),
        text: text.as_bytes(),
    };
    let tensor = Type::tensor(ElementType::F32, &[2, 128, 8, 64]);
    let layouts = "[dense<[3, 2, 1, 0]> : tensor<4xindex>, dense<[3, 2, 1, 0]> : tensor<4xindex>, \
                   dense<[3, 2, 1, 0]> : tensor<4xindex>]";
    let call = CustomCall {
        call_target_name: b"flash_attention",
        api_version: 4,
        attributes: vec![
            text("scale", "0.125 : f32"),
            text("causal", "true"),
            text("window", "array<i64: -1, 0>"),
        ],
        backend_config: None,
        mlir_attributes: vec![
            text("operand_layouts", layouts),
            text("result_layouts", "[dense<[3, 2, 1, 0]> : tensor<4xindex>]"),
            text(
                "sdy.sharding_rule",
                "#sdy.op_sharding_rule<([i, j, k, l], [i, m, k, l], [i, m, k, l])->([i, j, k, l]) \
                 {i=2, j=128, k=8, l=64, m=128} need_replication={j, l, m}>",
            ),
        ],
    };
    let operation = Operation {
        kind: OperationKind::CustomCall(call),
        operands: vec![0, 1, 2],
        first_result: 3,
        results: vec![tensor.clone()],
        regions: vec![],
    };
    let parameters = (0..3).map(|value| Parameter {
        value,
        r#type: tensor.clone(),
        attributes: vec![],
    });
    Graph {
        functions: vec![Function {
            name: b"main",
            private: false,
            parameters: parameters.collect(),
            results: vec![Output {
                r#type: tensor.clone(),
                attributes: vec![],
            }],
            body: Block {
                operations: vec![operation],
                outputs: vec![3],
                ..Block::default()
            },
        }],
        ..Graph::default()
    }
}

/// From the graph to bytecode, in a fresh context, as the package does it.
fn time(build: impl Fn(&Context) -> Result<Module, Error>) -> Result<Duration, Error> {
    let start = Instant::now();
    let context = Context::new(Limits::default());
    let module = build(&context)?;
    std::hint::black_box(module.to_bytecode());
    drop(module);
    drop(context);
    Ok(start.elapsed())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() -> Result<(), Error> {
    let graph = attention();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for turn in 0..WARM_UP + TURNS {
        let checked = time(|context| Module::build(context, &graph))?;
        let unchecked = time(|context| Module::build_unchecked(context, &graph))?;
        if turn >= WARM_UP {
            with.push(checked);
            without.push(unchecked);
        }
    }
    let (with, without) = (median(&mut with), median(&mut without));
    println!("one custom call with six attributes, context to bytecode, median of {TURNS}:");
    println!("  with the rules    {with:?}");
    println!("  without them      {without:?}");
    println!(
        "  ratio             {:.3}",
        with.as_secs_f64() / without.as_secs_f64()
    );
    Ok(())
}
