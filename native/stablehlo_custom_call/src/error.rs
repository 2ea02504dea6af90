use std::fmt::{self, Display, Formatter};

/// What sort of thing an [`Error`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// An attribute, function or operation name.
    Name,
    /// An attribute text: its syntax, length or nesting.
    Text,
    /// A field of the custom call against another of its fields.
    Spec,
    /// A tensor type or the bytes of a constant.
    Type,
    /// The graph's shape: value numbers, regions, function results.
    Graph,
}

/// Why a graph was refused. The message names the field, the attribute, the place and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{field}: the attribute name at index {index} is empty; give every attribute a name")]
    EmptyName { field: &'static str, index: usize },

    #[error("{field}: the attribute name {} is not valid UTF-8; MLIR identifiers are UTF-8 text", Quoted(.name))]
    NameNotUtf8 { field: &'static str, name: Vec<u8> },

    #[error("{field}: the attribute name {} holds a NUL byte; MLIR identifiers cannot", Quoted(.name))]
    NameWithNul { field: &'static str, name: Vec<u8> },

    #[error("{field}: the attribute name {} is given twice; give each name once", Quoted(.name))]
    DuplicateName { field: &'static str, name: Vec<u8> },

    #[error("{field}: the attribute name {} is reserved; {remedy}", Quoted(.name))]
    ReservedName {
        field: &'static str,
        name: Vec<u8>,
        remedy: &'static str,
    },

    #[error("{field}: the text of {} is not an MLIR attribute: {message}, at line {line}, column {column}: {}{}", Quoted(.name), Excerpt(.text, .line, .column), Hint(.message, .text, *.line, *.column))]
    Syntax {
        field: &'static str,
        name: Vec<u8>,
        text: Vec<u8>,
        message: String,
        line: usize,
        column: usize,
    },

    #[error("{field}: the text of {} has {found} bytes, more than the limit of {limit}; pass large data as an operand, or raise max_text_bytes of the context", Quoted(.name))]
    TextTooLong {
        field: &'static str,
        name: Vec<u8>,
        found: usize,
        limit: usize,
    },

    #[error("{field}: the text of {} nests deeper than {limit} at line {line}, column {column}: {}; flatten it", Quoted(.name), Excerpt(.text, .line, .column))]
    TextTooDeep {
        field: &'static str,
        name: Vec<u8>,
        text: Vec<u8>,
        limit: usize,
        line: usize,
        column: usize,
    },

    #[error("api_version: {found} is not one of 1, 2, 3 and 4; use 4 for a typed FFI handler")]
    ApiVersion { found: i64 },

    #[error("backend_config: a binary needs api_version 1, 2 or 3, and api_version is 4; with 4 the backend_config is a dictionary, given as attributes")]
    BackendConfigForTypedFfi,

    #[error("attributes: they need api_version 4, and api_version is {api_version}; below 4 the backend_config is a string, given as the field backend_config")]
    AttributesForOldApi { api_version: i64 },

    #[error("{place}: dimension {index} is {found}; a dimension is 0 or more")]
    NegativeDimension {
        place: String,
        index: usize,
        found: i64,
    },

    #[error(
        "{place}: the dimensions {} of {element_type} take more than 2^63 - 1 bytes", Integers(.dimensions)
    )]
    TensorTooLarge {
        place: String,
        dimensions: Vec<i64>,
        element_type: &'static str,
    },

    #[error("{place}: tuples nest deeper than {limit}; flatten them")]
    TupleTooDeep { place: String, limit: usize },

    #[error("constant: {expected} bytes make a {tensor}, and there are {found}")]
    ConstantSize {
        tensor: String,
        expected: usize,
        found: usize,
    },

    #[error("constant: element {index} is the byte {byte}, which an {element} cannot hold")]
    ConstantElement {
        index: usize,
        byte: u8,
        element: &'static str,
    },

    #[error("constant: a token, a tuple or a buffer has no elements to give; a token is made by the operation stablehlo.create_token")]
    ConstantToken,

    #[error("the operation name {} is not one of MLIR: a dialect, a dot and a name of letters, digits, '_', '$' and '.', as in \"stablehlo.add\"", Quoted(.name))]
    OperationName { name: Vec<u8> },

    #[error("the operation {} is emitted from the graph itself; {remedy}", Quoted(.name))]
    OperationDialect { name: Vec<u8>, remedy: &'static str },

    #[error("the function name {} {problem}", Quoted(.name))]
    FunctionName {
        name: Vec<u8>,
        problem: &'static str,
    },

    #[error(
        "{place}: value {value} is used before it is defined or outside the region that defines it"
    )]
    UndefinedValue { place: String, value: u32 },

    #[error("value {value} is defined twice")]
    RedefinedValue { value: u32 },

    #[error("regions nest deeper than {limit}; move inner computations into functions")]
    RegionsTooDeep { limit: usize },

    #[error("donate: {problem}")]
    Donation { problem: String },

    #[error("the module has mhlo.sharding, which Shardy does not read, and the CPU plugin of PJRT 0.115 ends the process over it; compile with the option shardy: false, or write sdy.sharding")]
    Partitioner,

    #[error("an sdy attribute of the module is one that the CPU plugin of PJRT 0.106 does not read, and this plugin is of PJRT {}.{}; see the module's warnings, or use a newer plugin", .found.0, .found.1)]
    OldPlugin { found: (i32, i32) },

    /// A rule of StableHLO, of Shardy or of XLA that the custom call breaks, though MLIR reads it.
    #[error("{}", Sentence(.0))]
    Rule(Box<Rule>),

    /// Several faults of one custom call, or of one list of attributes. There are two at least.
    #[error("{}", Numbered(.errors, *.more))]
    Several {
        errors: Vec<Error>,
        /// How many more custom calls and values are at fault.
        more: usize,
    },

    /// The fault or faults of a custom call in a module that has more than one.
    #[error("{error} (in custom call {index} of @{function}, target {})", Quoted(.target))]
    InCall {
        function: String,
        /// Which of the function's custom calls, from 0, those in regions included.
        index: usize,
        target: Vec<u8>,
        error: Box<Error>,
    },

    /// The fault or faults of the attributes of a function's parameter or result.
    #[error("{error} (of {place} of @{function})")]
    OfValue {
        function: String,
        place: Place,
        error: Box<Error>,
    },

    #[error("the call of @{callee} in @{caller}: {problem}")]
    Call {
        caller: String,
        callee: String,
        problem: String,
    },

    #[error("MLIR refuses the operation {operation}: {message}")]
    Operation { operation: String, message: String },

    #[error("MLIR refuses the module: {message}")]
    Verification { message: String },
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::EmptyName { .. }
            | Self::NameNotUtf8 { .. }
            | Self::NameWithNul { .. }
            | Self::DuplicateName { .. }
            | Self::ReservedName { .. }
            | Self::OperationName { .. }
            | Self::OperationDialect { .. }
            | Self::FunctionName { .. } => ErrorKind::Name,
            Self::Syntax { .. } | Self::TextTooLong { .. } | Self::TextTooDeep { .. } => {
                ErrorKind::Text
            }
            Self::ApiVersion { .. }
            | Self::BackendConfigForTypedFfi
            | Self::AttributesForOldApi { .. } => ErrorKind::Spec,
            Self::NegativeDimension { .. }
            | Self::TensorTooLarge { .. }
            | Self::ConstantSize { .. }
            | Self::ConstantElement { .. }
            | Self::ConstantToken
            | Self::TupleTooDeep { .. } => ErrorKind::Type,
            Self::Rule(rule) => rule.kind,
            Self::Several { errors, .. } => errors.first().map_or(ErrorKind::Spec, Self::kind),
            Self::InCall { error, .. } | Self::OfValue { error, .. } => error.kind(),
            Self::UndefinedValue { .. }
            | Self::RedefinedValue { .. }
            | Self::RegionsTooDeep { .. }
            | Self::Donation { .. }
            | Self::Partitioner
            | Self::OldPlugin { .. }
            | Self::Call { .. }
            | Self::Operation { .. }
            | Self::Verification { .. } => ErrorKind::Graph,
        }
    }

    /// The field of the custom call's spec, or the part of the graph, that is wrong.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::EmptyName { field, .. }
            | Self::NameNotUtf8 { field, .. }
            | Self::NameWithNul { field, .. }
            | Self::DuplicateName { field, .. }
            | Self::ReservedName { field, .. }
            | Self::Syntax { field, .. }
            | Self::TextTooLong { field, .. }
            | Self::TextTooDeep { field, .. } => Some(field),
            Self::Rule(rule) => rule.field,
            Self::Several { errors, .. } => errors.first()?.field(),
            Self::InCall { error, .. } | Self::OfValue { error, .. } => error.field(),
            Self::ApiVersion { .. } => Some("api_version"),
            Self::BackendConfigForTypedFfi => Some("backend_config"),
            Self::AttributesForOldApi { .. } => Some("attributes"),
            _ => None,
        }
    }

    /// The attribute, operation or function name, as it was given.
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Self::NameNotUtf8 { name, .. }
            | Self::NameWithNul { name, .. }
            | Self::DuplicateName { name, .. }
            | Self::ReservedName { name, .. }
            | Self::Syntax { name, .. }
            | Self::TextTooLong { name, .. }
            | Self::TextTooDeep { name, .. }
            | Self::OperationName { name }
            | Self::OperationDialect { name, .. }
            | Self::FunctionName { name, .. } => Some(name),
            Self::Rule(rule) => rule.name.as_deref(),
            Self::Several { errors, .. } => errors.first()?.name(),
            Self::InCall { error, .. } | Self::OfValue { error, .. } => error.name(),
            _ => None,
        }
    }

    /// Line and column in the attribute text, both from 1; columns count bytes.
    pub fn position(&self) -> Option<(usize, usize)> {
        match self {
            Self::Syntax { line, column, .. } | Self::TextTooDeep { line, column, .. } => {
                Some((*line, *column))
            }
            Self::Rule(rule) => rule.position,
            Self::Several { errors, .. } => errors.first()?.position(),
            Self::InCall { error, .. } | Self::OfValue { error, .. } => error.position(),
            _ => None,
        }
    }

    /// The faults, one by one: there is one at least.
    pub fn faults(&self) -> &[Self] {
        match self {
            Self::Several { errors, .. } => errors,
            Self::InCall { error, .. } | Self::OfValue { error, .. } => error.faults(),
            _ => std::slice::from_ref(self),
        }
    }

    /// The custom call that is at fault, in a module that has more than one: its function, its index
    /// among the function's custom calls, and its target.
    pub fn call(&self) -> Option<(&str, usize, &[u8])> {
        match self {
            Self::InCall {
                function,
                index,
                target,
                ..
            } => Some((function, *index, target)),
            Self::Several { errors, .. } => errors.first()?.call(),
            _ => None,
        }
    }

    /// One error for all faults that were found.
    pub(crate) fn all(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several { errors, more: 0 }),
        }
    }

    /// One error for the faults of several calls and values, each fault with its call or value; `more` are
    /// at fault beside them.
    pub(crate) fn flat(mut errors: Vec<Self>, more: usize) -> Result<(), Self> {
        if errors.len() < 2 {
            return errors.pop().map_or(Ok(()), Err);
        }
        let mut flat = Vec::with_capacity(errors.len());
        for error in errors {
            match error {
                Self::InCall {
                    function,
                    index,
                    target,
                    error,
                } => flat.extend(error.into_faults().into_iter().map(|error| Self::InCall {
                    function: function.clone(),
                    index,
                    target: target.clone(),
                    error: Box::new(error),
                })),
                Self::OfValue {
                    function,
                    place,
                    error,
                } => flat.extend(error.into_faults().into_iter().map(|error| Self::OfValue {
                    function: function.clone(),
                    place,
                    error: Box::new(error),
                })),
                error => flat.extend(error.into_faults()),
            }
        }
        Err(Self::Several { errors: flat, more })
    }

    fn into_faults(self) -> Vec<Self> {
        match self {
            Self::Several { errors, .. } => errors,
            error => vec![error],
        }
    }

    /// What was found.
    pub fn found(&self) -> String {
        match self {
            Self::EmptyName { .. } => "an empty name".into(),
            Self::NameNotUtf8 { name, .. }
            | Self::NameWithNul { name, .. }
            | Self::DuplicateName { name, .. }
            | Self::ReservedName { name, .. }
            | Self::OperationName { name }
            | Self::OperationDialect { name, .. }
            | Self::FunctionName { name, .. } => Quoted(name).to_string(),
            Self::Syntax { message, .. } => message.clone(),
            Self::TextTooLong { found, .. } => format!("{found} bytes"),
            Self::TextTooDeep { limit, .. } => format!("more than {limit} levels"),
            Self::ApiVersion { found } => found.to_string(),
            Self::BackendConfigForTypedFfi => "a binary with api_version 4".into(),
            Self::AttributesForOldApi { api_version } => {
                format!("attributes with api_version {api_version}")
            }
            Self::NegativeDimension { index, found, .. } => {
                format!("dimension {index} is {found}")
            }
            Self::TensorTooLarge {
                dimensions,
                element_type,
                ..
            } => format!("the dimensions {} of {element_type}", Integers(dimensions)),
            Self::TupleTooDeep { limit, .. } => format!("more than {limit} levels of tuples"),
            Self::ConstantSize { found, .. } => format!("{found} bytes"),
            Self::ConstantElement { index, byte, .. } => {
                format!("element {index} is the byte {byte}")
            }
            Self::ConstantToken => "a constant of a type without elements".into(),
            Self::UndefinedValue { value, .. } => format!("value {value}"),
            Self::RedefinedValue { value } => format!("value {value} twice"),
            Self::RegionsTooDeep { limit } => format!("more than {limit} levels of regions"),
            Self::Donation { problem } => problem.clone(),
            Self::OldPlugin { found } => format!("a plugin of PJRT {}.{}", found.0, found.1),
            Self::Partitioner => "mhlo.sharding, and Shardy as the partitioner".into(),
            Self::Rule(rule) => rule.found.clone(),
            Self::Several { errors, .. } => errors.first().map(Self::found).unwrap_or_default(),
            Self::InCall { error, .. } | Self::OfValue { error, .. } => error.found(),
            Self::Call { problem, .. } => problem.clone(),
            Self::Operation { message, .. } | Self::Verification { message } => message.clone(),
        }
    }

    /// What would be right.
    pub fn expected(&self) -> String {
        match self {
            Self::EmptyName { .. } => "a name".into(),
            Self::NameNotUtf8 { .. } => "a name of UTF-8 text".into(),
            Self::NameWithNul { .. } => "a name without a NUL".into(),
            Self::DuplicateName { .. } => "each name once".into(),
            Self::ReservedName { remedy, .. } => (*remedy).into(),
            Self::Syntax {
                message,
                text,
                line,
                column,
                ..
            } => hint(message, text, *line, *column)
                .unwrap_or("the text of one MLIR attribute")
                .into(),
            Self::TextTooLong { limit, .. } => format!("at most {limit} bytes"),
            Self::TextTooDeep { limit, .. } => format!("at most {limit} levels"),
            Self::ApiVersion { .. } => "1, 2, 3 or 4".into(),
            Self::BackendConfigForTypedFfi => "attributes, or api_version 1, 2 or 3".into(),
            Self::AttributesForOldApi { .. } => "backend_config, or api_version 4".into(),
            Self::NegativeDimension { .. } => "a dimension of 0 or more".into(),
            Self::TensorTooLarge { .. } => "at most 2^63 - 1 bytes".into(),
            Self::TupleTooDeep { limit, .. } => format!("at most {limit} levels of tuples"),
            Self::ConstantSize {
                tensor, expected, ..
            } => format!("{expected} bytes for a {tensor}"),
            Self::ConstantElement { element, .. } => format!("a byte that an {element} can hold"),
            Self::ConstantToken => "the operation stablehlo.create_token".into(),
            Self::OperationName { .. } => "a dialect, a dot and a name".into(),
            Self::OperationDialect { remedy, .. } => (*remedy).into(),
            Self::FunctionName { .. } => "a name of its own for each function".into(),
            Self::UndefinedValue { .. } => "a value that is defined before it is used".into(),
            Self::RedefinedValue { .. } => "one definition a value".into(),
            Self::RegionsTooDeep { limit } => format!("at most {limit} levels of regions"),
            Self::Donation { .. } => "a parameter of the function main".into(),
            Self::OldPlugin { .. } => "a plugin of PJRT 0.107 or later".into(),
            Self::Partitioner => "sdy.sharding, or the option shardy: false".into(),
            Self::Rule(rule) => rule.expected.clone(),
            Self::Several { errors, .. } => errors.first().map(Self::expected).unwrap_or_default(),
            Self::InCall { error, .. } | Self::OfValue { error, .. } => error.expected(),
            Self::Call { .. } => "a call that fits its function".into(),
            Self::Operation { .. } | Self::Verification { .. } => {
                "a module that MLIR verifies".into()
            }
        }
    }
}

/// What is right in MLIR for what people write who know another language.
fn hint(message: &str, text: &[u8], line: usize, column: usize) -> Option<&'static str> {
    if message.starts_with("integer constant out of range") {
        return Some(
            "an integer without a type is an i64; give it one that holds it, such as ui64",
        );
    }
    if message.starts_with("floating point value not valid") {
        return Some("a number with a point is a float, such as 0.5 : f32; an integer has none");
    }
    let line = text
        .split(|&byte| byte == b'\n')
        .nth(line.checked_sub(1)?)?;
    let at = line.get(column.checked_sub(1)?..).unwrap_or_default();
    let before = &line[..line.len() - at.len()];
    // MLIR complains of what follows a number that it did not read to its end.
    let word_start = before
        .iter()
        .rposition(|byte| !(byte.is_ascii_alphanumeric() || b"_.+-".contains(byte)))
        .map_or(0, |index| index + 1);
    let word_end = at
        .iter()
        .position(|byte| !(byte.is_ascii_alphanumeric() || b"_.+-".contains(byte)))
        .unwrap_or(at.len());
    let word = &line[word_start..before.len() + word_end];
    let lower = word.to_ascii_lowercase();
    match lower.strip_prefix(b"-").unwrap_or(&lower) {
        // As it should be written, it is at fault for another reason.
        b"true" | b"false" if lower != word => return Some("a boolean is true or false"),
        b"nil" | b"none" | b"null" => {
            return Some("there is no nil; leave the attribute out, or write unit");
        }
        b"inf" | b"infinity" | b"nan" => {
            return Some(
                "infinities and NaN are the bits of the float, such as 0x7F800000 : f32 and \
                 0x7FC00000 : f32",
            );
        }
        _ => {}
    }
    let mut rest = lower.as_slice();
    let digits = |rest: &mut &[u8]| {
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        *rest = &rest[count..];
        count > 0
    };
    if digits(&mut rest) && rest.first() == Some(&b'e') {
        return Some("a float has a point, such as 1.0e10 : f64");
    }
    let text = text.trim_ascii();
    let count = |wanted: &[u8]| text.iter().filter(|byte| wanted.contains(byte)).count();
    // MLIR complains of the last token where it finds nothing behind it.
    let at_the_end = at.trim_ascii().len() <= 1;
    if text.is_empty() {
        Some("write an attribute, such as 1 : i64")
    } else if at.trim_ascii_start().starts_with(b"'") {
        Some("a string is in double quotes, such as \"fast\"")
    } else if count(b"\"") % 2 == 1 {
        Some("the quote that is open is to be closed")
    } else if at_the_end && count(b"[{(<") > count(b"]})>") {
        Some("the text ends too early; close what is open")
    } else {
        None
    }
}

/// A hint, where there is one.
struct Hint<'a>(&'a str, &'a [u8], usize, usize);

impl Display for Hint<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        hint(self.0, self.1, self.2, self.3).map_or(Ok(()), |hint| write!(formatter, "; {hint}"))
    }
}

/// A parameter or a result of a function, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Parameter(usize),
    Result(usize),
}

impl Place {
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::Parameter(_) => "parameter_attributes",
            Self::Result(_) => "result_attributes",
        }
    }
}

impl Display for Place {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(index) => write!(formatter, "parameter {index}"),
            Self::Result(index) => write!(formatter, "result {index}"),
        }
    }
}

/// A rule that is broken: where, what was found, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub kind: ErrorKind,
    pub field: Option<&'static str>,
    pub name: Option<Vec<u8>>,
    /// Line and column in the attribute's text, both from 1; columns count bytes.
    pub position: Option<(usize, usize)>,
    /// A clause, such as `layout 1 is [0, 0]`.
    pub found: String,
    /// Another, such as `a layout of rank 2 is a permutation of 0 to 1`.
    pub expected: String,
}

/// `field: "name", found; expected, at line 1, column 8`
struct Sentence<'a>(&'a Rule);

impl Display for Sentence<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let rule = self.0;
        if let Some(field) = rule.field {
            write!(formatter, "{field}: ")?;
        }
        if let Some(name) = &rule.name {
            write!(formatter, "{}: ", Quoted(name))?;
        }
        write!(formatter, "{}; {}", rule.found, rule.expected)?;
        match rule.position {
            // The whole text: its place says nothing.
            None | Some((1, 1)) => Ok(()),
            Some((line, column)) => write!(formatter, ", at line {line}, column {column}"),
        }
    }
}

/// Faults one under the other.
struct Numbered<'a>(&'a [Error], usize);

const MOST_FAULTS_SHOWN: usize = 20;

impl Display for Numbered<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self(errors, more) = *self;
        write!(formatter, "{} faults:", errors.len() + more)?;
        for (index, error) in errors.iter().take(MOST_FAULTS_SHOWN).enumerate() {
            write!(formatter, "\n  {}. {error}", index + 1)?;
        }
        match errors.len().saturating_sub(MOST_FAULTS_SHOWN) + more {
            0 => Ok(()),
            more => write!(formatter, "\n  and {more} more"),
        }
    }
}

/// Bytes as a quoted string: UTF-8 stays readable, anything else is escaped.
pub(crate) struct Quoted<'a>(pub &'a [u8]);

const LONGEST_QUOTE: usize = 120;

impl Display for Quoted<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let (bytes, ellipsis) = if self.0.len() > LONGEST_QUOTE {
            (&self.0[..LONGEST_QUOTE], "...")
        } else {
            (self.0, "")
        };
        formatter.write_str("\"")?;
        for chunk in bytes.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\'' => formatter.write_str("'")?,
                    _ => write!(formatter, "{}", character.escape_debug())?,
                }
            }
            for byte in chunk.invalid() {
                write!(formatter, "\\x{byte:02x}")?;
            }
        }
        write!(formatter, "\"{ellipsis}")
    }
}

/// Integers as a list, cut where they are many.
pub(crate) struct Integers<'a>(pub &'a [i64]);

const LONGEST_LIST: usize = 16;

impl Display for Integers<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self(all) = self;
        if all.len() <= LONGEST_LIST {
            return write!(formatter, "{all:?}");
        }
        formatter.write_str("[")?;
        for integer in &all[..LONGEST_LIST] {
            write!(formatter, "{integer}, ")?;
        }
        write!(formatter, "... {} more]", all.len() - LONGEST_LIST)
    }
}

/// A count and what is counted, in the singular or the plural.
pub(crate) struct Count(pub usize, pub &'static str);

impl Display for Count {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self(count, noun) = self;
        let plural = if *count == 1 { "" } else { "s" };
        write!(formatter, "{count} {noun}{plural}")
    }
}

/// The part of a text around a position.
struct Excerpt<'a>(&'a [u8], &'a usize, &'a usize);

const EXCERPT_BEFORE: usize = 40;
const EXCERPT_AFTER: usize = 40;

impl Display for Excerpt<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self(text, line, column) = *self;
        let line = text
            .split(|&byte| byte == b'\n')
            .nth(line.saturating_sub(1))
            .unwrap_or_default();
        let at = column.saturating_sub(1).min(line.len());
        let mut start = at.saturating_sub(EXCERPT_BEFORE);
        while start > 0 && is_continuation(line[start]) {
            start -= 1;
        }
        let mut end = (at + EXCERPT_AFTER).min(line.len());
        while end < line.len() && is_continuation(line[end]) {
            end += 1;
        }
        let before = if start > 0 { "..." } else { "" };
        let after = if end < line.len() { "..." } else { "" };
        write!(formatter, "{before}{}{after}", Quoted(&line[start..end]))
    }
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_utf8_is_shown_with_escapes() {
        assert_eq!(Quoted(b"a\xff\"\n\0b").to_string(), r#""a\xff\"\n\0b""#);
    }

    #[test]
    fn a_list_is_cut_after_16_integers() {
        assert_eq!(Integers(&[1, 2]).to_string(), "[1, 2]");
        assert_eq!(
            Integers(&[7; 100_000]).to_string(),
            "[7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, ... 99984 more]"
        );
    }

    #[test]
    fn an_excerpt_shows_the_line_around_the_column() {
        let text = [b"x".repeat(100), b"\n[1, oops]".to_vec()].concat();
        let excerpt = Excerpt(&text, &2, &5);
        assert_eq!(excerpt.to_string(), r#""[1, oops]""#);
    }

    #[test]
    fn an_excerpt_never_splits_a_character() {
        let text = "é".repeat(100);
        let excerpt = Excerpt(text.as_bytes(), &1, &100);
        assert!(!excerpt.to_string().contains("\\x"));
    }
}
