//! Smaller cases that still differ in the same way.

use stablehlo_custom_call::{ElementType, Type};

use crate::case::{Case, Named};
use crate::judge::{Class, Verdict};
use crate::session::{Error, Session};

/// Makes a case smaller as long as it stays in its class, asking at most so many times.
///
/// # Errors
/// [`Error`].
pub fn shrink(
    session: &mut Session,
    case: &Case,
    class: &Class,
    mut asks: usize,
) -> Result<Case, Error> {
    let mut best = case.clone();
    loop {
        let mut smaller = smaller(&best);
        smaller.retain(|candidate| candidate.weight() < best.weight());
        let before = best.weight();
        for candidate in smaller {
            if asks == 0 {
                return Ok(best);
            }
            asks -= 1;
            if matches!(session.ask(&candidate)?.verdict(), Verdict::Differ(other) if other == *class)
            {
                best = candidate;
                break;
            }
        }
        if best.weight() == before {
            return Ok(best);
        }
    }
}

/// Cases with one thing less, those with much less first.
fn smaller(case: &Case) -> Vec<Case> {
    let mut list = Vec::new();
    let mut with = |change: &dyn Fn(&mut Case)| {
        let mut smaller = case.clone();
        change(&mut smaller);
        list.push(smaller);
    };
    with(&|case| {
        case.attributes.clear();
        case.functions.clear();
    });
    with(&|case| case.mlir_attributes.clear());
    with(&|case| {
        case.operands.clear();
        case.results.clear();
    });
    with(&|case| case.operands.clear());
    with(&|case| case.results.clear());
    for index in 0..case.attributes.len() {
        with(&|case| {
            case.attributes.remove(index);
        });
    }
    for index in 0..case.mlir_attributes.len() {
        with(&|case| {
            case.mlir_attributes.remove(index);
        });
    }
    for index in 0..case.functions.len() {
        with(&|case| {
            case.functions.remove(index);
        });
        with(&|case| case.functions[index].1.clear());
    }
    for index in 0..case.meshes.len() {
        with(&|case| {
            case.meshes.remove(index);
        });
    }
    with(&|case| {
        case.shardy = false;
        case.partitions = 1;
    });
    with(&|case| case.partitions = 1);
    with(&|case| case.backend_config = None);
    with(&|case| case.backend_config = Some(b"x".to_vec()));
    with(&|case| case.api_version = 4);
    with(&|case| case.target = b"target".to_vec());
    with(&|case| case.target = b"t".to_vec());
    for index in 0..case.operands.len() {
        with(&|case| {
            case.operands.remove(index);
        });
        for smaller in smaller_types(&case.operands[index]) {
            with(&|case| case.operands[index] = smaller.clone());
        }
    }
    for index in 0..case.results.len() {
        with(&|case| {
            case.results.remove(index);
        });
        for smaller in smaller_types(&case.results[index]) {
            with(&|case| case.results[index] = smaller.clone());
        }
    }
    let texts = |list: &[Named]| -> Vec<(usize, Vec<u8>)> {
        list.iter()
            .enumerate()
            .flat_map(|(index, (_, text))| {
                smaller_texts(text)
                    .into_iter()
                    .map(move |text| (index, text))
            })
            .collect()
    };
    for (index, text) in texts(&case.attributes) {
        with(&|case| case.attributes[index].1 = text.clone());
    }
    for (index, text) in texts(&case.mlir_attributes) {
        with(&|case| case.mlir_attributes[index].1 = text.clone());
    }
    for (index, text) in texts(&case.meshes) {
        with(&|case| case.meshes[index].1 = text.clone());
    }
    for index in 0..case.attributes.len() {
        with(&|case| case.attributes[index].0 = b"k".to_vec());
    }
    list
}

fn smaller_types(r#type: &Type) -> Vec<Type> {
    let Type::Tensor {
        element,
        dimensions,
    } = r#type
    else {
        return vec![Type::tensor(ElementType::F32, &[])];
    };
    let mut types = vec![
        Type::tensor(ElementType::F32, &[]),
        Type::tensor(ElementType::F32, &[2]),
        Type::tensor(*element, &[]),
        Type::tensor(*element, &[2]),
        Type::tensor(ElementType::F32, dimensions),
    ];
    for index in 0..dimensions.len() {
        let mut fewer = dimensions.clone();
        fewer.remove(index);
        types.push(Type::tensor(*element, &fewer));
        let mut shorter = dimensions.clone();
        shorter[index] = shorter[index].min(2);
        types.push(Type::tensor(*element, &shorter));
    }
    types
}

/// Texts with a part taken out: what is in a bracket, an item of a list, ever shorter runs of bytes.
fn smaller_texts(text: &[u8]) -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    // The inside of a bracket, alone and left out.
    let mut open = Vec::new();
    for (index, byte) in text.iter().enumerate() {
        match byte {
            b'[' | b'{' | b'<' | b'(' => open.push(index),
            b']' | b'}' | b'>' | b')' => {
                if let Some(start) = open.pop() {
                    if start + 1 < index {
                        texts.push(text[start + 1..index].to_vec());
                        texts.push([&text[..=start], &text[index..]].concat());
                    }
                    texts.push(text[start..=index].to_vec());
                }
            }
            _ => {}
        }
    }
    let parts: Vec<_> = text.split(|&byte| byte == b',').collect();
    for left_out in 0..parts.len() {
        if parts.len() > 1 {
            let kept: Vec<_> = (0..parts.len()).filter(|&i| i != left_out).collect();
            let kept: Vec<_> = kept.iter().map(|&i| parts[i]).collect();
            texts.push(kept.join(&b","[..]).trim_ascii().to_vec());
        }
    }
    let mut length = text.len() / 2;
    while length > 0 {
        let mut start = 0;
        while start < text.len() {
            let end = (start + length).min(text.len());
            texts.push([&text[..start], &text[end..]].concat());
            start = end;
        }
        length /= 2;
    }
    texts
}
