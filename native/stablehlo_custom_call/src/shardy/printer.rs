//! From data to the text that Shardy prints.

use std::fmt::{self, Display, Formatter, Write};

use super::names;
use super::*;

/// What a closure writes.
pub(super) struct FromFn<F>(F);

impl<F: Fn(&mut Formatter<'_>) -> fmt::Result> Display for FromFn<F> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        (self.0)(formatter)
    }
}

pub(super) fn from_fn<F: Fn(&mut Formatter<'_>) -> fmt::Result>(write: F) -> FromFn<F> {
    FromFn(write)
}

/// The index of the last factor that is a letter.
pub(super) const INDEX_OF_Z: usize = (b'z' - b'i') as usize;

/// The symbol of a factor: i for 0, z for 17, z_1 for 18.
pub(super) fn factor_symbol(index: usize) -> impl Display {
    from_fn(move |formatter| match u8::try_from(index) {
        Ok(small) if index <= INDEX_OF_Z => formatter.write_char(char::from(b'i' + small)),
        _ => write!(formatter, "z_{}", index - INDEX_OF_Z),
    })
}

fn quoted(name: &str) -> impl Display + '_ {
    from_fn(move |formatter| {
        formatter.write_char('"')?;
        for byte in name.bytes() {
            match byte {
                b'\\' => formatter.write_str("\\\\")?,
                b'"' => formatter.write_str("\\22")?,
                b' '..=b'~' => formatter.write_char(char::from(byte))?,
                _ => write!(formatter, "\\{byte:02X}")?,
            }
        }
        formatter.write_char('"')
    })
}

fn separated<T: Display>(parts: impl IntoIterator<Item = T> + Clone) -> impl Display {
    from_fn(move |formatter| {
        for (index, part) in parts.clone().into_iter().enumerate() {
            if index > 0 {
                formatter.write_str(", ")?;
            }
            write!(formatter, "{part}")?;
        }
        Ok(())
    })
}

impl Display for Attribute {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let name = self.mnemonic();
        match self {
            Self::Mesh(part) => write!(formatter, "#sdy.{name}{part}"),
            Self::Sharding(part) => write!(formatter, "#sdy.{name}{part}"),
            Self::ShardingPerValue(part) => write!(formatter, "#sdy.{name}{part}"),
            Self::ShardingRule(part) => write!(formatter, "#sdy.{name}{part}"),
            Self::PropagationEdges(part) => write!(formatter, "#sdy.{name}{part}"),
            Self::ManualAxes(part) => write!(formatter, "#sdy<{name}{part}>"),
            Self::MeshAxis(part) => write!(formatter, "#sdy<{name}{part}>"),
            Self::SubAxis(part) => write!(formatter, "#sdy<{name}{part}>"),
            Self::AxisRef(part) => write!(formatter, "#sdy<{name}{part}>"),
            Self::DimensionSharding(part) => write!(formatter, "#sdy<{name}{part}>"),
            Self::TensorMapping(part) => write!(formatter, "#sdy<{name}{part}>"),
            Self::AxisRefList(part) => write!(formatter, "#sdy<{name}{part}>"),
            Self::AxisRefLists(part) => write!(formatter, "#sdy<{name}{part}>"),
            Self::AllToAll(part) => write!(formatter, "#sdy<{name}{part}>"),
            Self::AllToAllList(part) => write!(formatter, "#sdy<{name}{part}>"),
            Self::AxisPropagation(part) => write!(formatter, "#sdy<{name}{part}>"),
            Self::PropagationStep(part) => write!(formatter, "#sdy<{name}{part}>"),
            // Without the space the mnemonic would not end.
            Self::DimMapping(part) => write!(formatter, "#sdy<{name} {part}>"),
            Self::EdgeValue(part) => write!(formatter, "#sdy<{name} {part}>"),
        }
    }
}

impl Display for ManualAxes {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let names = self.names.iter().map(|name| quoted(name));
        write!(formatter, "{{{}}}", separated(names))
    }
}

impl Display for MeshAxis {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", quoted(&self.name), self.size)
    }
}

impl Display for Mesh {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "<[{}]", separated(&self.axes))?;
        if !self.device_ids.is_empty() {
            write!(formatter, ", device_ids=[{}]", separated(&self.device_ids))?;
        }
        formatter.write_char('>')
    }
}

impl Display for SubAxis {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "({}){}", self.pre_size, self.size)
    }
}

impl Display for AxisRef {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", quoted(&self.name))?;
        match self.sub_axis {
            Some(sub_axis) => write!(formatter, ":{sub_axis}"),
            None => Ok(()),
        }
    }
}

impl Display for DimensionSharding {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{{{}", separated(&self.axes))?;
        match (self.open, self.axes.is_empty()) {
            (true, true) => formatter.write_char('?')?,
            (true, false) => formatter.write_str(", ?")?,
            (false, _) => {}
        }
        formatter.write_char('}')?;
        match self.priority {
            Some(priority) => write!(formatter, "p{priority}"),
            None => Ok(()),
        }
    }
}

impl Display for MeshRef {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) if names::is_bare(name) => write!(formatter, "@{name}"),
            Self::Name(name) => write!(formatter, "@{}", quoted(name)),
            Self::Inline(mesh) => write!(formatter, "mesh{mesh}"),
        }
    }
}

impl Display for Reduction {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sum => "",
            Self::Max => "max",
            Self::Min => "min",
        })
    }
}

impl Display for Sharding {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "<{}, [{}]",
            self.mesh,
            separated(&self.dimensions)
        )?;
        if !self.replicated.is_empty() {
            write!(
                formatter,
                ", replicated={{{}}}",
                separated(&self.replicated)
            )?;
        }
        if !self.unreduced.is_empty() {
            let axes = separated(&self.unreduced);
            write!(formatter, ", unreduced={}{{{axes}}}", self.reduction)?;
        }
        formatter.write_char('>')
    }
}

impl Display for ShardingPerValue {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "<[{}]>", separated(&self.shardings))
    }
}

impl Display for DimMapping {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        self.factors
            .iter()
            .try_for_each(|&factor| write!(formatter, "{}", factor_symbol(factor)))
    }
}

impl Display for TensorMapping {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{}]", separated(&self.dimensions))
    }
}

impl Display for ShardingRule {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "<({})->({})",
            separated(&self.operands),
            separated(&self.results)
        )?;
        if !self.factor_sizes.is_empty() {
            let sizes = self.factor_sizes.iter().enumerate();
            let sizes = sizes.map(|(index, size)| {
                from_fn(move |formatter| write!(formatter, "{}={size}", factor_symbol(index)))
            });
            write!(formatter, " {{{}}}", separated(sizes))?;
        }
        for (name, factors) in self.lists() {
            if !factors.is_empty() {
                let symbols = factors.iter().map(|&factor| factor_symbol(factor));
                write!(formatter, " {name}={{{}}}", separated(symbols))?;
            }
        }
        formatter.write_str(if self.custom { ", custom>" } else { ">" })
    }
}

impl Display for AxisRefList {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{{{}}}", separated(&self.axes))
    }
}

impl Display for AxisRefLists {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{}]", separated(&self.lists))
    }
}

impl Display for AllToAll {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let (source, target) = (self.source_dimension, self.target_dimension);
        write!(
            formatter,
            "{{{}}}: {source}->{target}",
            separated(&self.axes)
        )
    }
}

impl Display for AllToAllList {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{}]", separated(&self.moves))
    }
}

impl Display for Role {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Operand => "operand",
            Self::Result => "result",
        })
    }
}

impl Display for EdgeValue {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}", self.role, self.index)
    }
}

impl Display for AxisPropagation {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let targets = separated(&self.targets);
        write!(
            formatter,
            "{{{} = {} -> [{targets}]}}",
            self.axis, self.source
        )
    }
}

impl Display for PropagationStep {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let axes = separated(&self.axes);
        write!(formatter, "{{step-{} = [{axes}]}}", self.index)
    }
}

impl Display for PropagationEdges {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "<[{}]>", separated(&self.steps))
    }
}
