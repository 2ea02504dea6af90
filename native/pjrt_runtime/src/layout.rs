//! How the elements of a buffer lie in memory.

// The constants in the patterns are bindgen's.
#![allow(non_upper_case_globals)]

use pjrt_sys::*;

use crate::api::slice;
use crate::element_type::TensorType;

/// The layout of a buffer on its device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// The dimensions in the order in which they are walked, and the tiles they are cut into.
    Tiled {
        /// The dimension that varies fastest comes first: `[1, 0]` is a row-major matrix.
        minor_to_major: Vec<i64>,
        /// The sizes of each tile, outermost first; empty on CPUs.
        tiles: Vec<Vec<i64>>,
    },
    /// Bytes from one element to the next along each dimension.
    Strides(Vec<i64>),
    /// A kind of layout that this crate does not know.
    Unknown,
}

impl Layout {
    /// Copies what the plugin tells.
    ///
    /// # Safety
    /// The lists that `layout` points to are alive.
    pub(crate) unsafe fn from_plugin(layout: &PJRT_Buffer_MemoryLayout) -> Self {
        match layout.type_ {
            PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Tiled => {
                // SAFETY: the type says which field of the union was written.
                let tiled = unsafe { layout.__bindgen_anon_1.tiled };
                // SAFETY: the caller vouches for the lists. The ranks of the tiles sum up to as
                // many sizes as are listed.
                let (order, ranks, mut sizes) = unsafe {
                    let ranks = slice(tiled.tile_dim_sizes, tiled.num_tiles);
                    (
                        slice(tiled.minor_to_major, tiled.minor_to_major_size),
                        ranks,
                        slice(tiled.tile_dims, ranks.iter().sum()),
                    )
                };
                let tiles = ranks.iter().map(|&rank| {
                    let (tile, rest) = sizes.split_at(rank.min(sizes.len()));
                    sizes = rest;
                    tile.to_vec()
                });
                Self::Tiled {
                    tiles: tiles.collect(),
                    minor_to_major: order.to_vec(),
                }
            }
            PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Strides => {
                // SAFETY: as above.
                let strides = unsafe { layout.__bindgen_anon_1.strides };
                // SAFETY: as above.
                let strides = unsafe { slice(strides.byte_strides, strides.num_byte_strides) };
                Self::Strides(strides.to_vec())
            }
            _ => Self::Unknown,
        }
    }

    /// Whether the layout is that of a host tensor.
    ///
    /// # Safety
    /// The lists that `layout` points to are alive.
    pub(crate) unsafe fn is_row_major(layout: &PJRT_Buffer_MemoryLayout) -> bool {
        if layout.type_ != PJRT_Buffer_MemoryLayout_Type_PJRT_Buffer_MemoryLayout_Type_Tiled {
            return false;
        }
        // SAFETY: the type says which field of the union was written, and the caller vouches for
        // its list.
        let (tiled, order) = unsafe {
            let tiled = layout.__bindgen_anon_1.tiled;
            (
                tiled,
                slice(tiled.minor_to_major, tiled.minor_to_major_size),
            )
        };
        tiled.num_tiles == 0 && order.iter().rev().copied().eq(0..order.len() as i64)
    }

    /// Bytes from one element of `tensor` to the next along each dimension; `None` where elements
    /// are packed or tiled, or where the layout is of another rank.
    pub fn byte_strides(&self, tensor: &TensorType) -> Option<Vec<i64>> {
        match self {
            Self::Strides(strides) => Some(strides.clone()),
            Self::Tiled {
                minor_to_major,
                tiles,
            } if tiles.is_empty()
                && tensor.element_type.bit_width() >= 8
                && minor_to_major.len() == tensor.dimensions.len() =>
            {
                let mut strides = vec![0; minor_to_major.len()];
                let mut stride = i64::try_from(tensor.element_type.byte_width()).ok()?;
                for &dimension in minor_to_major {
                    let dimension = usize::try_from(dimension).ok()?;
                    *strides.get_mut(dimension)? = stride;
                    stride =
                        stride.checked_mul(tensor.dimensions.get(dimension).copied()?.max(1))?;
                }
                Some(strides)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element_type::ElementType;

    fn tensor(element_type: ElementType, dimensions: &[i64]) -> TensorType {
        TensorType {
            element_type,
            dimensions: dimensions.to_vec(),
        }
    }

    fn untiled(minor_to_major: &[i64]) -> Layout {
        Layout::Tiled {
            minor_to_major: minor_to_major.to_vec(),
            tiles: vec![],
        }
    }

    #[test]
    fn the_strides_follow_the_order_of_the_dimensions() {
        let matrix = tensor(ElementType::F32, &[2, 3]);
        assert_eq!(untiled(&[1, 0]).byte_strides(&matrix), Some(vec![12, 4]));
        assert_eq!(untiled(&[0, 1]).byte_strides(&matrix), Some(vec![4, 8]));
        assert_eq!(
            untiled(&[]).byte_strides(&tensor(ElementType::F32, &[])),
            Some(vec![])
        );
        assert_eq!(
            Layout::Strides(vec![8, 4]).byte_strides(&matrix),
            Some(vec![8, 4])
        );
    }

    #[test]
    fn packed_tiled_and_foreign_layouts_have_no_strides() {
        let packed = tensor(ElementType::S4, &[2, 3]);
        let matrix = tensor(ElementType::F32, &[2, 3]);
        let tiled = Layout::Tiled {
            minor_to_major: vec![1, 0],
            tiles: vec![vec![8, 128]],
        };
        assert_eq!(untiled(&[1, 0]).byte_strides(&packed), None);
        assert_eq!(tiled.byte_strides(&matrix), None);
        assert_eq!(untiled(&[0]).byte_strides(&matrix), None);
        assert_eq!(untiled(&[5, 6]).byte_strides(&matrix), None);
        assert_eq!(Layout::Unknown.byte_strides(&matrix), None);
    }
}
