/// Defines handlers and exports them under their names, ready for XLA to call.
///
/// ```
/// use xla_ffi::{Arg, Ret};
///
/// xla_ffi::export! {
///     /// y = factor * x, element by element.
///     pub fn doc_scale(x: Arg<f32>) -> (y: Ret<f32>)
///     attrs { factor: f32 }
///     {
///         if x.dims() != y.dims() {
///             return Err(y.error(format!("expected the dimensions of {x:?}, found {y}")));
///         }
///         for (y, x) in y.iter_mut().zip(x.iter()) {
///             *y = factor * x;
///         }
///         Ok(())
///     }
/// }
/// ```
///
/// - The operands are in the parentheses: see [`FromOperands`](crate::FromOperands) for their types.
/// - The results are in those behind the arrow, and mutable: see [`FromResults`](crate::FromResults).
/// - The attributes are in the braces after `attrs`, if there are any: see [`FromAttr`](crate::FromAttr).
///   Attributes that are not listed are refused, unless the list ends with `..`, which ignores them, or with
///   `..name`, which binds all of them as [`Attrs`](crate::Attrs).
/// - The body is that of a function that returns [`Result<()>`](crate::Result).
///
/// Counts, types and attributes are checked before the body runs. What does not match fails the execution with
/// a message such as `operand 1 (b): expected f32, found f64`, and so does an `Err` of the body, or a panic in it.
///
/// Each function becomes a `#[no_mangle] unsafe extern "C" fn(*mut CallFrame) -> *mut Error` of its name, which
/// is what XLA's registration takes as the handler for the execute stage. Buffers are read and written as memory
/// of the host, so register it for the platform `Host` only.
#[macro_export]
macro_rules! export {
    () => {};

    // All attributes are listed.
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($operand:ident: $operand_type:ty),* $(,)?)
            -> ($($result:ident: $result_type:ty),* $(,)?)
        attrs { $($attr:ident: $attr_type:ty),* $(,)? }
        $body:block
        $($rest:tt)*
    ) => {
        $crate::export! {
            @define [$(#[$meta])* $vis] $name
            [$($operand: $operand_type,)*] [$($result: $result_type,)*] [$($attr: $attr_type,)*] []
            $body
        }
        $crate::export! { $($rest)* }
    };

    // There can be others.
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($operand:ident: $operand_type:ty),* $(,)?)
            -> ($($result:ident: $result_type:ty),* $(,)?)
        attrs { $($attr:ident: $attr_type:ty,)* .. $($all:ident)? }
        $body:block
        $($rest:tt)*
    ) => {
        $crate::export! {
            @define [$(#[$meta])* $vis] $name
            [$($operand: $operand_type,)*] [$($result: $result_type,)*] [$($attr: $attr_type,)*]
            [.. $($all)?]
            $body
        }
        $crate::export! { $($rest)* }
    };

    // There are none.
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($operands:tt)*) -> ($($results:tt)*)
        $body:block
        $($rest:tt)*
    ) => {
        $crate::export! {
            $(#[$meta])*
            $vis fn $name($($operands)*) -> ($($results)*)
            attrs {}
            $body
            $($rest)*
        }
    };

    (
        @define [$(#[$meta:meta])* $vis:vis] $name:ident
        [$($operand:ident: $operand_type:ty,)*]
        [$($result:ident: $result_type:ty,)*]
        [$($attr:ident: $attr_type:ty,)*]
        [$(.. $($all:ident)?)?]
        $body:block
    ) => {
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// For XLA to call, on a platform whose buffers are memory of the host.
        #[unsafe(no_mangle)]
        $vis unsafe extern "C" fn $name(
            frame: *mut $crate::sys::CallFrame,
        ) -> *mut $crate::sys::Error {
            #[allow(unused_mut, elided_lifetimes_in_paths, clippy::too_many_arguments)]
            fn body(
                $($operand: $operand_type,)*
                $(mut $result: $result_type,)*
                $($attr: $attr_type,)*
                $($($all: $crate::Attrs<'_>,)?)?
            ) -> $crate::Result<()> $body

            const DEFINITION: $crate::__private::Definition = $crate::__private::Definition {
                stage: $crate::sys::STAGE_EXECUTE,
                traits: 0,
                operands: &[$(<$operand_type as $crate::FromOperands<'_>>::ARITY),*],
                results: &[$(<$result_type as $crate::FromResults<'_>>::ARITY),*],
                attributes: $crate::export!(@names [$($attr)*] $(.. $($all)?)?),
            };
            const _: () = assert!(
                $crate::__private::in_order(DEFINITION.operands)
                    && $crate::__private::in_order(DEFINITION.results),
                "an Option can be followed by others and a Vec only, a Vec by nothing"
            );

            // SAFETY: only XLA calls this, with a frame of its own and buffers in memory of the host.
            unsafe {
                $crate::__private::run(frame, &DEFINITION, |call| {
                    #[allow(unused_mut, unused_variables)]
                    let mut call = call;
                    body(
                        $($crate::FromOperands::from_operands(
                            &mut call.operands,
                            $crate::__private::parameter_name(::core::stringify!($operand)),
                        )?,)*
                        $($crate::FromResults::from_results(
                            &mut call.results,
                            $crate::__private::parameter_name(::core::stringify!($result)),
                        )?,)*
                        $(call.attributes.get(
                            $crate::__private::parameter_name(::core::stringify!($attr)),
                        )?,)*
                        $($($crate::export!(@all call.attributes; $all),)?)?
                    )
                })
            }
        }
    };

    (@names [$($attr:ident)*]) => {
        ::core::option::Option::Some(&[
            $($crate::__private::parameter_name(::core::stringify!($attr))),*
        ])
    };

    (@names [$($attr:ident)*] .. $($all:ident)?) => {
        ::core::option::Option::None
    };

    // `$all` is here to say how often this is expanded: once or not at all.
    (@all $attributes:expr; $all:ident) => {
        $attributes
    };
}
