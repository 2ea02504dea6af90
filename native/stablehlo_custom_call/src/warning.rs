use crate::error::Quoted;
use std::fmt::{self, Display, Formatter};

/// What a module's builder may not have meant: it is legal, and XLA will not do what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub field: &'static str,
    /// The attribute's name, or the custom call's target.
    pub name: Vec<u8>,
    /// A clause, such as `XLA drops it`.
    pub found: String,
    /// What to use instead.
    pub instead: String,
}

impl Display for Warning {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}: {}: {}; {}",
            self.field,
            Quoted(&self.name),
            self.found,
            self.instead
        )
    }
}
