use crate::buffer::{ResultMemory, Role, View};
use crate::{AliasedArg, AnyArg, AnyRet, Arg, Element, Error, Result, Ret};
use std::fmt;

/// How many buffers a parameter of a handler stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// One that must be there.
    One,
    /// One or none. Only parameters that need not be there can follow.
    Optional,
    /// All that are left. No parameter can follow.
    Rest,
}

/// Whether no parameter comes after one that may have taken its buffer.
pub const fn in_order(arities: &[Arity]) -> bool {
    let mut index = 1;
    while index < arities.len() {
        match (arities[index - 1], arities[index]) {
            (Arity::One, _) | (Arity::Optional, Arity::Optional | Arity::Rest) => index += 1,
            _ => return false,
        }
    }
    true
}

fn check_count(role: Role, arities: &[Arity], found: usize) -> Result<()> {
    let required = arities.iter().filter(|arity| **arity == Arity::One).count();
    let open = arities.contains(&Arity::Rest);
    if found >= required && (open || found <= arities.len()) {
        return Ok(());
    }
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let expected = match (required, arities.len()) {
        (_, 0) => format!("no {role}s"),
        (required, _) if open => format!("at least {required} {role}{}", plural(required)),
        (required, most) if required < most => format!("{required} to {most} {role}s"),
        (required, _) => format!("{required} {role}{}", plural(required)),
    };
    Err(Error::invalid_argument(format!(
        "expected {expected}, found {found}"
    )))
}

/// The operands of a call that no parameter has taken yet.
pub struct Operands<'a> {
    views: std::vec::IntoIter<View<'a>>,
    memory: ResultMemory,
}

impl<'a> Operands<'a> {
    pub(crate) fn new(views: Vec<View<'a>>, memory: ResultMemory) -> Self {
        Self {
            views: views.into_iter(),
            memory,
        }
    }

    pub(crate) fn check_count(&self, arities: &[Arity]) -> Result<()> {
        check_count(Role::Operand, arities, self.views.len())
    }

    /// The number of operands that are left.
    pub fn len(&self) -> usize {
        self.views.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.views.len() == 0
    }

    /// Takes the next operand, which messages will call by this name.
    pub fn take(&mut self, name: &'static str) -> Option<AnyArg<'a>> {
        let mut view = self.views.next()?;
        view.label.name = name;
        Some(AnyArg::new(view, &self.memory))
    }
}

impl fmt::Debug for Operands<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operands")
            .field("len", &self.len())
            .finish()
    }
}

/// The results of a call that no parameter has taken yet.
pub struct Results<'a> {
    views: std::vec::IntoIter<View<'a>>,
}

impl<'a> Results<'a> {
    /// # Safety
    ///
    /// The views are those of the results of one call, [`ResultMemory::of`] accepted them, and this is the only
    /// `Results` made of them.
    pub(crate) unsafe fn new(views: Vec<View<'a>>) -> Self {
        Self {
            views: views.into_iter(),
        }
    }

    pub(crate) fn check_count(&self, arities: &[Arity]) -> Result<()> {
        check_count(Role::Result, arities, self.views.len())
    }

    /// The number of results that are left.
    pub fn len(&self) -> usize {
        self.views.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.views.len() == 0
    }

    /// Takes the next result, which messages will call by this name.
    pub fn take(&mut self, name: &'static str) -> Option<AnyRet<'a>> {
        let mut view = self.views.next()?;
        view.label.name = name;
        // SAFETY: `new` is told that these views are of disjoint results, and the iterator gives each once.
        Some(unsafe { AnyRet::new(view) })
    }
}

impl fmt::Debug for Results<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results").field("len", &self.len()).finish()
    }
}

/// A type that a handler can take operands as.
///
/// | type | operands |
/// |---|---|
/// | [`Arg<T>`](Arg) | one with elements of type `T` that shares no memory with a result |
/// | [`AliasedArg<T>`](AliasedArg) | one with elements of type `T` |
/// | [`AnyArg`] | one of any type |
/// | `Option` of these | one or none |
/// | `Vec` of these | all that are left |
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an operand of a handler",
    note = "take operands as `Arg<T>`, `AliasedArg<T>` or `AnyArg`, or as an `Option` or a `Vec` of these"
)]
pub trait FromOperands<'a>: Sized {
    /// How many operands this takes.
    const ARITY: Arity;

    /// Takes them.
    fn from_operands(operands: &mut Operands<'a>, name: &'static str) -> Result<Self>;
}

/// A type that a handler can take results as.
///
/// | type | results |
/// |---|---|
/// | [`Ret<T>`](Ret) | one with elements of type `T` |
/// | [`AnyRet`] | one of any type |
/// | `Option` of these | one or none |
/// | `Vec` of these | all that are left |
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a result of a handler",
    note = "take results as `Ret<T>` or `AnyRet`, or as an `Option` or a `Vec` of these"
)]
pub trait FromResults<'a>: Sized {
    /// How many results this takes.
    const ARITY: Arity;

    /// Takes them.
    fn from_results(results: &mut Results<'a>, name: &'static str) -> Result<Self>;
}

macro_rules! from_buffers {
    ($trait:ident, $method:ident, $buffers:ident, $any:ident, [$($type:ident by $typed:ident),*]) => {
        impl<'a> $trait<'a> for $any<'a> {
            const ARITY: Arity = Arity::One;

            fn $method(buffers: &mut $buffers<'a>, name: &'static str) -> Result<Self> {
                // The number of buffers is checked first, so this is for parameters of other crates' types.
                buffers
                    .take(name)
                    .ok_or_else(|| Error::invalid_argument(format!("nothing left for {name}")))
            }
        }

        $(
            impl<'a, T: Element> $trait<'a> for $type<'a, T> {
                const ARITY: Arity = Arity::One;

                fn $method(buffers: &mut $buffers<'a>, name: &'static str) -> Result<Self> {
                    $any::$method(buffers, name)?.$typed()
                }
            }
        )*

        impl<'a, B: $trait<'a>> $trait<'a> for Option<B> {
            const ARITY: Arity = {
                assert!(matches!(B::ARITY, Arity::One), "an Option is of one buffer");
                Arity::Optional
            };

            fn $method(buffers: &mut $buffers<'a>, name: &'static str) -> Result<Self> {
                if buffers.is_empty() {
                    Ok(None)
                } else {
                    B::$method(buffers, name).map(Some)
                }
            }
        }

        impl<'a, B: $trait<'a>> $trait<'a> for Vec<B> {
            const ARITY: Arity = {
                assert!(matches!(B::ARITY, Arity::One), "a Vec is of one buffer each");
                Arity::Rest
            };

            fn $method(buffers: &mut $buffers<'a>, name: &'static str) -> Result<Self> {
                let mut taken = Vec::with_capacity(buffers.len());
                while !buffers.is_empty() {
                    taken.push(B::$method(buffers, name)?);
                }
                Ok(taken)
            }
        }
    };
}

from_buffers!(FromOperands, from_operands, Operands, AnyArg, [Arg by typed, AliasedArg by aliased]);
from_buffers!(FromResults, from_results, Results, AnyRet, [Ret by typed]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let error = |arities: &[Arity], found| {
            check_count(Role::Operand, arities, found)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(error(&[], 1), "expected no operands, found 1");
        assert_eq!(error(&[Arity::One], 2), "expected 1 operand, found 2");
        assert_eq!(error(&[Arity::One; 2], 0), "expected 2 operands, found 0");
        assert_eq!(
            error(&[Arity::One, Arity::Optional], 3),
            "expected 1 to 2 operands, found 3"
        );
        assert_eq!(
            error(&[Arity::One, Arity::Rest], 0),
            "expected at least 1 operand, found 0"
        );
        for found in 0..5 {
            assert!(check_count(Role::Result, &[Arity::Rest], found).is_ok());
        }
    }

    #[test]
    fn order() {
        use Arity::*;
        assert!(in_order(&[]));
        assert!(in_order(&[One, One, Optional, Optional, Rest]));
        assert!(!in_order(&[Optional, One]));
        assert!(!in_order(&[Rest, One]));
        assert!(!in_order(&[Rest, Rest]));
    }
}
