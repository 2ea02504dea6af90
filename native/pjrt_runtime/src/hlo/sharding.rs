//! Shardings: `{devices=[2,1]<=[2]}`.

use std::fmt;

use pjrt_sys::protos::xla::op_sharding::Type;
use pjrt_sys::protos::xla::OpSharding;

use super::list;

pub(super) struct Sharding<'a>(pub(super) &'a OpSharding);

impl fmt::Display for Sharding<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sharding = self.0;
        formatter.write_str("{")?;
        match sharding.r#type() {
            Type::Replicated => formatter.write_str("replicated")?,
            Type::Maximal => {
                let device = sharding.tile_assignment_devices.first().copied();
                write!(formatter, "maximal device={}", device.unwrap_or_default())?;
            }
            Type::Manual => formatter.write_str("manual")?,
            Type::Unknown => formatter.write_str("unknown")?,
            Type::Tuple => {
                for (index, part) in sharding.tuple_shardings.iter().enumerate() {
                    formatter.write_str(if index > 0 { ", " } else { "" })?;
                    Sharding(part).fmt(formatter)?;
                }
            }
            Type::Other => print_tiles(formatter, sharding)?,
        }
        if sharding.is_shard_group {
            let kind = if sharding.shard_group_type == 0 {
                "as"
            } else {
                "like"
            };
            write!(formatter, " shard_{kind} {}", sharding.shard_group_id)?;
        }
        formatter.write_str("}")
    }
}

fn print_tiles(formatter: &mut fmt::Formatter<'_>, sharding: &OpSharding) -> fmt::Result {
    write!(
        formatter,
        "devices=[{}]",
        list(&sharding.tile_assignment_dimensions)
    )?;
    if sharding.iota_reshape_dims.is_empty() {
        write!(formatter, "{}", list(&sharding.tile_assignment_devices))?;
    } else {
        print_iota(
            formatter,
            &sharding.iota_reshape_dims,
            &sharding.iota_transpose_perm,
        )?;
    }
    if sharding.replicate_on_last_tile_dim {
        formatter.write_str(" last_tile_dim_replicate")?;
    }
    if !sharding.last_tile_dims.is_empty() {
        let kinds: Vec<&str> = sharding
            .last_tile_dims()
            .map(|kind| match kind {
                Type::Manual => "manual",
                Type::Replicated => "replicated",
                _ => "unknown",
            })
            .collect();
        write!(
            formatter,
            " last_tile_dims={{{}}}",
            super::Joined(&kinds, ", ")
        )?;
    }
    Ok(())
}

/// Device numbers in their order, reshaped and perhaps transposed.
pub(super) fn print_iota(
    out: &mut impl fmt::Write,
    reshape: &[i64],
    transpose: &[i32],
) -> fmt::Result {
    write!(out, "<=[{}]", list(reshape))?;
    let changed = !transpose.iter().copied().eq(0..transpose.len() as i32);
    if changed {
        write!(out, "T({})", list(transpose))?;
    }
    Ok(())
}
