//! What XLA takes, and what is worth a word all the same.

use super::fault::Faults;
use super::printer::factor_symbol;
use super::*;

impl ShardingRule {
    /// Dimensions whose size is not the product of their factors.
    ///
    /// Shardy does not compare the two, and a dimension that an operation pads or slices has a reason
    /// to differ; elsewhere it is a slip. Dimensions of a rank that is wrong are left to
    /// [`verify`](Self::verify).
    pub fn size_mismatches(&self, operands: &[TensorShape], results: &[TensorShape]) -> Vec<Fault> {
        let mut faults = Faults::default();
        for (role, mappings, shapes) in [
            (Role::Operand, &self.operands, operands),
            (Role::Result, &self.results, results),
        ] {
            for (index, (mapping, shape)) in mappings.iter().zip(shapes).enumerate() {
                let TensorShape::Ranked(dimensions) = shape else {
                    continue;
                };
                let pairs = mapping.dimensions.iter().zip(dimensions).enumerate();
                for (dimension, (mapping, size)) in pairs {
                    let Some((size, product)) = size.zip(self.product(mapping)) else {
                        continue;
                    };
                    if product.is_none_or(|product| product != size) {
                        let product = product.map_or("beyond 2^63 - 1".into(), |p| p.to_string());
                        faults.add(
                            format_args!("{role} {index}, dimension {dimension}"),
                            format_args!(
                                "its size is {size} and the product of its factors is {product}"
                            ),
                        );
                    }
                }
            }
        }
        faults.into_vec()
    }

    /// The product of the factors of a dimension; `None` where it has none or unknown ones, and then
    /// `None` where the product has no room.
    fn product(&self, mapping: &DimMapping) -> Option<Option<i64>> {
        if mapping.factors.is_empty() {
            return None;
        }
        let mut product = Some(1i64);
        for &factor in &mapping.factors {
            let size = *self.factor_sizes.get(factor)?;
            product = product.and_then(|product| product.checked_mul(size));
        }
        Some(product)
    }
}

impl Attribute {
    /// What PJRT 0.115 reads and PJRT 0.106 does not: sizes of factors beyond 32 bits, and unreduced
    /// axes that are not summed.
    pub fn portability(&self) -> Vec<Fault> {
        let mut faults = Faults::default();
        let mut check = |place: &str, sharding: &Sharding| {
            if sharding.reduction != Reduction::Sum && !sharding.unreduced.is_empty() {
                faults.add(
                    format_args!("{place}unreduced"),
                    format_args!(
                        "PJRT 0.106 does not read the word {}; it only sums",
                        sharding.reduction
                    ),
                );
            }
        };
        match self {
            Self::Sharding(sharding) => check("", sharding),
            Self::ShardingPerValue(value) => {
                for (index, sharding) in value.shardings.iter().enumerate() {
                    check(&format!("sharding {index}, "), sharding);
                }
            }
            Self::ShardingRule(rule) => {
                for (factor, &size) in rule.factor_sizes.iter().enumerate() {
                    if i32::try_from(size).is_err() {
                        faults.add(
                            format_args!("factor {}", factor_symbol(factor)),
                            format_args!(
                                "PJRT 0.106 reads sizes of factors up to 2^31 - 1, and this is {size}"
                            ),
                        );
                    }
                }
            }
            _ => {}
        }
        faults.into_vec()
    }
}
