//! Types: `f32[2,3]{1,0}`.

use std::fmt;

use pjrt_sys::protos::xla::{LayoutProto, ShapeProto};

use super::{list, Comma};
use crate::element_type::ElementType;

/// `xla.PrimitiveType` codes of what is no tensor.
const TUPLE: i32 = 13;
const OPAQUE: i32 = 14;
const TOKEN: i32 = 17;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layouts {
    Shown,
    Left,
}

pub(super) struct Shape<'a>(pub(super) &'a ShapeProto, pub(super) Layouts);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(shape, layouts) = *self;
        match shape.element_type {
            TUPLE => {
                formatter.write_str("(")?;
                for (index, part) in shape.tuple_shapes.iter().enumerate() {
                    write!(formatter, "{}{}", Comma(index), Shape(part, layouts))?;
                }
                return formatter.write_str(")");
            }
            OPAQUE => return formatter.write_str("opaque[]"),
            TOKEN => return formatter.write_str("token[]"),
            _ => {}
        }
        match ElementType::from_primitive_type(shape.element_type) {
            Some(element_type) => write!(formatter, "{element_type}[")?,
            None => write!(formatter, "type{}[", shape.element_type)?,
        }
        for (index, size) in shape.dimensions.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let dynamic = shape.is_dynamic_dimension.get(index) == Some(&true);
            let bound = if dynamic { "<=" } else { "" };
            write!(formatter, "{comma}{bound}{size}")?;
        }
        formatter.write_str("]")?;
        match &shape.layout {
            Some(layout) if layouts == Layouts::Shown => print_layout(formatter, layout),
            _ => Ok(()),
        }
    }
}

fn print_layout(formatter: &mut fmt::Formatter<'_>, layout: &LayoutProto) -> fmt::Result {
    let mut rest = String::new();
    for (index, tile) in layout.tiles.iter().enumerate() {
        rest.push_str(if index == 0 { "T" } else { "" });
        rest.push_str(&format!("({})", list(&tile.dimensions)));
    }
    if layout.element_size_in_bits != 0 {
        rest.push_str(&format!("E({})", layout.element_size_in_bits));
    }
    if layout.memory_space != 0 {
        rest.push_str(&format!("S({})", layout.memory_space));
    }
    if layout.minor_to_major.is_empty() && rest.is_empty() {
        return Ok(());
    }
    let colon = if rest.is_empty() { "" } else { ":" };
    write!(
        formatter,
        "{{{}{colon}{rest}}}",
        list(&layout.minor_to_major)
    )
}
