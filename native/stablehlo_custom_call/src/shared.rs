use crate::{
    context::Context, error::Error, graph::Graph, growth::Growth, limits::Limits, module::Module,
};
use std::{
    fmt::{self, Debug, Formatter},
    mem,
    sync::{
        atomic::{AtomicU64, Ordering::Relaxed},
        Mutex, MutexGuard, PoisonError,
    },
};

/// A context for modules without end, whose memory has a bound.
///
/// It stands for one [`Context`] after another. Once the one that it has is reckoned to have grown by
/// more than a budget, the next module is built in a fresh one: the contexts rotate. Modules of an
/// earlier one stay as they are and keep it alive; with the last of them it is freed.
///
/// It builds one module at a time. Reading a module that was built waits for a build, and a build
/// for it, only where both are in the same context.
pub struct SharedContext {
    limits: Limits,
    /// `None`: never.
    rotate_after: Option<usize>,
    /// Locked for the length of a build, so that a context outgrows its budget by one module at most.
    current: Mutex<Generation>,
    // Beside the lock, so that the numbers can be read during a build.
    modules: AtomicU64,
    refused: AtomicU64,
    texts: AtomicU64,
    text_bytes: AtomicU64,
    rotations: AtomicU64,
    bytes: AtomicU64,
    builders: AtomicU64,
}

/// A context, and what was built in it.
struct Generation {
    context: Context,
    growth: Growth,
}

/// What a [`SharedContext`] did, and holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// The modules that were built, in all.
    pub modules: u64,
    /// The graphs that were refused, in all.
    pub refused: u64,
    /// The attribute texts of all those graphs, each as often as it came.
    pub texts: u64,
    /// The bytes of those texts.
    pub text_bytes: u64,
    /// How often a fresh MLIR context took the place of the one before.
    pub rotations: u64,
    /// An upper estimate of the bytes that the present MLIR context has grown by since it was made.
    ///
    /// It is reckoned from what was built, each attribute, type and name that differs counted once:
    /// MLIR has no function that tells. Measured, a process grew by between a third and all of it for
    /// most kinds of attributes, and by a tenth for long arrays of numbers.
    pub bytes: u64,
    /// How many builds were under way or waited for their turn.
    pub builders: u64,
}

impl SharedContext {
    /// Some 50,000 small modules that all differ, or as many as there are where they do not: making a
    /// context then costs nothing beside what is built in it, and it takes 10 to 30 MB.
    pub const ROTATE_AFTER: usize = 32 << 20;

    /// `rotate_after` are the estimated bytes of [`Stats::bytes`] after which a context is left;
    /// `None` keeps the first one for good.
    pub fn new(limits: Limits, rotate_after: Option<usize>) -> Self {
        Self {
            limits,
            rotate_after,
            current: Mutex::new(Generation::new(limits)),
            modules: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            texts: AtomicU64::new(0),
            text_bytes: AtomicU64::new(0),
            rotations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            builders: AtomicU64::new(0),
        }
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Builds a module as [`Module::build`] does.
    pub fn build(&self, graph: &Graph<'_>) -> Result<Module, Error> {
        let _builder = Builder::new(&self.builders);
        let mut current = self.lock();
        let outgrown = self.rotate(&mut current);
        let texts = current.growth.add(graph);
        self.texts.fetch_add(texts.count, Relaxed);
        self.text_bytes.fetch_add(texts.bytes, Relaxed);
        self.bytes.store(current.growth.bytes() as u64, Relaxed);
        let built = Module::build(&current.context, graph);
        drop(current);
        let counter = if built.is_ok() {
            &self.modules
        } else {
            &self.refused
        };
        counter.fetch_add(1, Relaxed);
        // Where no module is left in it, this frees it: with the lock open, others build meanwhile.
        drop(outgrown);
        built
    }

    pub fn stats(&self) -> Stats {
        Stats {
            modules: self.modules.load(Relaxed),
            refused: self.refused.load(Relaxed),
            texts: self.texts.load(Relaxed),
            text_bytes: self.text_bytes.load(Relaxed),
            rotations: self.rotations.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            builders: self.builders.load(Relaxed),
        }
    }

    /// Puts a fresh context in the place of one that has outgrown the budget, and returns that.
    fn rotate(&self, current: &mut Generation) -> Option<Generation> {
        if current.growth.bytes() <= self.rotate_after? {
            return None;
        }
        self.rotations.fetch_add(1, Relaxed);
        Some(mem::replace(current, Generation::new(self.limits)))
    }

    // A panic while the lock was held leaves at worst parts that were counted and not built.
    fn lock(&self) -> MutexGuard<'_, Generation> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generation {
    fn new(limits: Limits) -> Self {
        Self {
            context: Context::new(limits),
            growth: Growth::default(),
        }
    }
}

/// Counts a build for as long as it lives.
struct Builder<'a>(&'a AtomicU64);

impl<'a> Builder<'a> {
    fn new(builders: &'a AtomicU64) -> Self {
        builders.fetch_add(1, Relaxed);
        Self(builders)
    }
}

impl Drop for Builder<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Debug for SharedContext {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SharedContext")
            .field("limits", &self.limits)
            .field("rotate_after", &self.rotate_after)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, CustomCall, Function, NamedText, Operation, OperationKind};
    use std::sync::Arc;

    /// Builds a module whose one custom call has an attribute of this text.
    fn build(context: &SharedContext, text: &str) -> Result<Module, Error> {
        let call = CustomCall {
            call_target_name: b"k",
            api_version: 4,
            attributes: vec![NamedText {
                name: b"a",
                text: text.as_bytes(),
            }],
            backend_config: None,
            mlir_attributes: vec![],
        };
        context.build(&Graph {
            functions: vec![Function {
                name: b"main",
                private: false,
                parameters: vec![],
                results: vec![],
                body: Block {
                    operations: vec![Operation {
                        kind: OperationKind::CustomCall(call),
                        operands: vec![],
                        first_result: 0,
                        results: vec![],
                        regions: vec![],
                    }],
                    ..Block::default()
                },
            }],
            ..Graph::default()
        })
    }

    fn shared(rotate_after: Option<usize>) -> SharedContext {
        SharedContext::new(Limits::default(), rotate_after)
    }

    #[test]
    fn what_was_built_is_counted_and_what_came_before_weighs_nothing() {
        let context = shared(None);
        build(&context, "1 : i64").unwrap();
        let bytes = context.stats().bytes;
        assert!(bytes > 0);
        build(&context, "1 : i64").unwrap();
        build(&context, "oops").unwrap_err();
        assert!(context.stats().bytes > bytes);
        let bytes = context.stats().bytes;
        build(&context, "oops").unwrap_err();
        assert_eq!(
            context.stats(),
            Stats {
                modules: 2,
                refused: 2,
                texts: 4,
                text_bytes: 22,
                rotations: 0,
                bytes,
                builders: 0,
            }
        );
    }

    #[test]
    fn a_context_over_its_budget_is_left_at_the_next_build_and_its_modules_stay() {
        let context = shared(Some(2048));
        let big = format!("\"{}\"", "x".repeat(4096));
        let first = build(&context, &big).unwrap();
        assert_eq!(context.stats().rotations, 0);
        let second = build(&context, "2 : i64").unwrap();
        assert_eq!(context.stats().rotations, 1);
        assert!(context.stats().bytes < 2048);
        let third = build(&context, "3 : i64").unwrap();
        assert_eq!(context.stats().rotations, 1);
        drop(context);
        assert!(first.to_text().contains(&big));
        assert!(second.to_text().contains("{a = 2 : i64}"));
        assert!(third.to_text().contains("{a = 3 : i64}"));
    }

    #[test]
    fn a_budget_of_nothing_gives_each_module_a_context_of_its_own() {
        let context = shared(Some(0));
        let modules: Vec<_> = (0..4)
            .map(|n| build(&context, &format!("{n} : i64")).unwrap())
            .collect();
        assert_eq!(context.stats().rotations, 3);
        for (n, module) in modules.iter().enumerate() {
            assert!(module.to_text().contains(&format!("{{a = {n} : i64}}")));
        }
    }

    #[test]
    fn without_a_budget_a_context_is_never_left() {
        let context = shared(None);
        for n in 0..200 {
            build(&context, &format!("\"{n}{}\"", "x".repeat(4096))).unwrap();
        }
        assert_eq!(context.stats().rotations, 0);
        assert!(context.stats().bytes > 200 * 4096);
    }

    #[test]
    fn an_outgrown_context_is_freed_with_its_last_module() {
        let context = shared(Some(0));
        let module = build(&context, "1 : i64").unwrap();
        let outgrown = context.lock().context.clone();
        build(&context, "2 : i64").unwrap();
        assert_eq!(outgrown.handles(), 2);
        drop(module);
        assert_eq!(outgrown.handles(), 1);
    }

    #[test]
    fn threads_build_print_and_drop_in_it_while_it_rotates_under_them() {
        let context = Arc::new(shared(Some(4096)));
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let context = Arc::clone(&context);
                std::thread::spawn(move || {
                    let mut kept = Vec::new();
                    for n in 0..50 {
                        let text = format!("{} : i64", thread * 1000 + n);
                        kept.push((build(&context, &text).unwrap(), text));
                        if n % 7 == 0 {
                            kept.swap_remove(kept.len() / 2);
                        }
                    }
                    for (module, text) in &kept {
                        assert!(module.to_text().contains(&format!("{{a = {text}}}")));
                    }
                    // To be dropped by another thread.
                    kept
                })
            })
            .collect();
        let kept: Vec<_> = threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect();
        let stats = context.stats();
        assert_eq!((stats.modules, stats.texts, stats.builders), (400, 400, 0));
        assert!(stats.rotations > 10, "{stats:?}");
        drop(context);
        drop(kept);
    }

    #[cfg(target_os = "linux")]
    #[test]
    #[ignore = "it measures its process, which the test below starts for it alone"]
    fn measure() {
        use crate::measure::{argument, resident};
        let (rotate_after, builds) = match argument().as_str() {
            "rotating" => (Some(SharedContext::ROTATE_AFTER), 300_000),
            _ => (None, 100_000),
        };
        let context = shared(rotate_after);
        let run = |numbers: std::ops::Range<u32>| {
            for n in numbers {
                build(&context, &format!("{n} : i64")).unwrap();
            }
            resident() as f64
        };
        let before = run(0..builds / 3);
        println!("grown: {}", run(builds / 3..builds) - before);
        println!("rotations: {}", context.stats().rotations);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn builds_of_ever_new_values_take_no_more_memory_while_it_rotates() {
        use crate::measure::Measured;
        const MIB: f64 = 1024.0 * 1024.0;
        let rotating = Measured::run("shared::tests::measure", "rotating");
        assert!(rotating.number("rotations") >= 3.0);
        // 200,000 more than after the first 100,000, which rotated too.
        let grown = rotating.number("grown");
        assert!(grown < 8.0 * MIB, "grown by {grown}");

        let for_good = Measured::run("shared::tests::measure", "for good");
        let grown = for_good.number("grown");
        assert!(grown > 16.0 * MIB, "grown by {grown}");
    }
}
