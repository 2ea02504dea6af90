//! Asks this package's checker and XLA the same questions, and compares the answers.
//!
//! A question is a [`case::Case`]: a custom call in a module of its own. [`generate`] makes them from
//! a seed and an index, [`checker`] asks the package, [`plugin`] asks XLA in a worker process, and
//! [`judge`] compares. Two things are promised:
//!
//! 1. What the package accepts, XLA reads, and does not crash, hang or exhaust memory over. Where XLA
//!    refuses it later, in words, that is a softer disagreement, reported and not counted as a fault.
//! 2. What the package refuses, XLA refuses or crashes over; or the refusal is one of the
//!    [`limits`], which are few and written down.
//!
//! An accepted case goes to XLA as the bytecode that the package writes. A refused one goes as text
//! into which the attribute texts are spliced, where each means the same within the text as alone.

pub mod case;
pub mod checker;
pub mod corpus;
pub mod generate;
pub mod grammar;
pub mod judge;
pub mod limits;
pub mod plugin;
pub mod record;
pub mod report;
pub mod rng;
pub mod session;
pub mod shrink;
