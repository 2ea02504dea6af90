//! Names with values: a plugin's attributes and a client's create options.

// The constants in the patterns are bindgen's.
#![allow(non_upper_case_globals)]

use pjrt_sys::*;

use crate::api::{lossy, slice};

/// A value of one of the types that PJRT gives names to.
#[derive(Clone, Debug, PartialEq)]
pub enum NamedValue {
    String(String),
    Int64(i64),
    Int64List(Vec<i64>),
    Float(f32),
    Bool(bool),
}

/// Lends options to the plugin. The result points into `options`.
pub(crate) fn to_plugin(options: &[(String, NamedValue)]) -> Vec<PJRT_NamedValue> {
    options
        .iter()
        .map(|(name, value)| {
            // No tail here: these are elements of an array, whose stride is the plugin's.
            let mut named = PJRT_NamedValue {
                struct_size: size_of::<PJRT_NamedValue>(),
                name: name.as_ptr().cast(),
                name_size: name.len(),
                value_size: 1,
                ..Default::default()
            };
            let (kind, union) = (&mut named.type_, &mut named.__bindgen_anon_1);
            match value {
                NamedValue::String(text) => {
                    *kind = PJRT_NamedValue_Type_PJRT_NamedValue_kString;
                    union.string_value = text.as_ptr().cast();
                    named.value_size = text.len();
                }
                NamedValue::Int64(number) => {
                    *kind = PJRT_NamedValue_Type_PJRT_NamedValue_kInt64;
                    union.int64_value = *number;
                }
                NamedValue::Int64List(numbers) => {
                    *kind = PJRT_NamedValue_Type_PJRT_NamedValue_kInt64List;
                    union.int64_array_value = numbers.as_ptr();
                    named.value_size = numbers.len();
                }
                NamedValue::Float(number) => {
                    *kind = PJRT_NamedValue_Type_PJRT_NamedValue_kFloat;
                    union.float_value = *number;
                }
                NamedValue::Bool(truth) => {
                    *kind = PJRT_NamedValue_Type_PJRT_NamedValue_kBool;
                    union.bool_value = *truth;
                }
            }
            named
        })
        .collect()
}

/// Copies an array of the plugin's. Values of a type that this crate does not know are left out.
///
/// # Safety
/// `values` is null or points to `len` values as `pjrt_c_api.h` describes them, alive for the call.
pub(crate) unsafe fn from_plugin(
    values: *const PJRT_NamedValue,
    len: usize,
) -> Vec<(String, NamedValue)> {
    let mut result = Vec::new();
    if values.is_null() || len == 0 {
        return result;
    }
    // The stride is the plugin's own size of the struct, which a newer header may have enlarged.
    // SAFETY: there is a first value.
    let stride = unsafe { (*values).struct_size }.max(size_of::<PJRT_NamedValue>());
    for index in 0..len {
        // SAFETY: `index` is below `len`, and the stride is that of the plugin's array.
        let named = unsafe { values.byte_add(index * stride).read() };
        // SAFETY: the name has `name_size` bytes.
        let name = unsafe { lossy(named.name, named.name_size) };
        let union = named.__bindgen_anon_1;
        // SAFETY: the type says which field of the union was written, and `value_size` how many
        // bytes or numbers a pointer in it leads to.
        let value = unsafe {
            match named.type_ {
                PJRT_NamedValue_Type_PJRT_NamedValue_kString => {
                    NamedValue::String(lossy(union.string_value, named.value_size))
                }
                PJRT_NamedValue_Type_PJRT_NamedValue_kInt64 => NamedValue::Int64(union.int64_value),
                PJRT_NamedValue_Type_PJRT_NamedValue_kInt64List => {
                    NamedValue::Int64List(slice(union.int64_array_value, named.value_size).to_vec())
                }
                PJRT_NamedValue_Type_PJRT_NamedValue_kFloat => NamedValue::Float(union.float_value),
                // Read as a number: a byte that is neither 0 nor 1 is no bool.
                PJRT_NamedValue_Type_PJRT_NamedValue_kBool => {
                    NamedValue::Bool((&raw const union).cast::<u8>().read() != 0)
                }
                _ => continue,
            }
        };
        result.push((name, value));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_value_survives_the_way_to_c_and_back() {
        let options = vec![
            ("text".to_owned(), NamedValue::String("a\0b".to_owned())),
            ("number".to_owned(), NamedValue::Int64(-7)),
            ("numbers".to_owned(), NamedValue::Int64List(vec![1, 2, 3])),
            ("none".to_owned(), NamedValue::Int64List(vec![])),
            ("float".to_owned(), NamedValue::Float(0.5)),
            ("truth".to_owned(), NamedValue::Bool(true)),
        ];
        let lent = to_plugin(&options);
        // SAFETY: the array points into `options`, which is alive.
        let back = unsafe { from_plugin(lent.as_ptr(), lent.len()) };
        assert_eq!(back, options);
    }

    #[test]
    fn a_value_of_an_unknown_kind_is_left_out() {
        let options = vec![
            ("new".to_owned(), NamedValue::Int64(1)),
            ("old".to_owned(), NamedValue::Int64(2)),
        ];
        let mut lent = to_plugin(&options);
        lent[0].type_ = 99;
        // SAFETY: the array points into `options`, which is alive.
        let back = unsafe { from_plugin(lent.as_ptr(), lent.len()) };
        assert_eq!(back, vec![("old".to_owned(), NamedValue::Int64(2))]);
    }
}
