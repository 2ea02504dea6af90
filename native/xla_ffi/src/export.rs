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
/// - What is made once for each executable, or done before each execution, is in further braces: see below.
/// - The body is that of a function that returns [`Result<()>`](crate::Result).
///
/// Counts, types and attributes are checked before the body runs. What does not match fails the execution with
/// a message such as `operand 1 (b): expected f32, found f64`, and so does an `Err` of the body, or a panic in it.
///
/// Each function becomes a `#[no_mangle] unsafe extern "C" fn(*mut CallFrame) -> *mut Error` of its name, which
/// is what XLA's registration takes as the handler for the execute stage. Buffers are read and written as memory
/// of the host, so register it for the platform `Host` only. [`library!`](crate::library) exports a table of a
/// crate's handlers, so that they are registered without anybody having to say their names again.
///
/// # Stages
///
/// XLA calls a handler in up to four stages, and so a handler has up to four parts:
///
/// ```
/// use xla_ffi::{Arg, Error, Ret};
///
/// /// Coefficients, the constant one first.
/// struct Polynomial(Vec<f32>);
///
/// impl Polynomial {
///     fn parse(text: &str) -> Result<Self, Error> {
///         let coefficients: Result<_, _> = text.split(' ').map(str::parse).collect();
///         coefficients
///             .map(Self)
///             .map_err(|error| Error::invalid_argument(format!("attribute \"coefficients\": {error}")))
///     }
/// }
///
/// xla_ffi::export! {
///     /// y = p(x). The text is parsed once, when the program is compiled.
///     pub fn doc_polynomial(x: Arg<f32>) -> (y: Ret<f32>)
///     attrs { coefficients: &str }
///     state { p: Polynomial = Polynomial::parse(coefficients)? }
///     {
///         for (y, x) in y.iter_mut().zip(x.iter()) {
///             *y = p.0.iter().rev().fold(0.0, |sum, c| sum * x + c);
///         }
///         Ok(())
///     }
/// }
///
/// use xla_ffi::testing::{Executable, Frame};
///
/// let mut frame = Frame::new()
///     .operand(&[3], &[0.0f32, 1.0, 2.0])
///     .result::<f32>(&[3])
///     .attribute("coefficients", "1 0 2");
/// let executable = Executable::<doc_polynomial>::new(&frame)?;
/// executable.run(&mut frame)?;
/// assert_eq!(frame.values::<f32>(0), [1.0, 3.0, 9.0]);
///
/// let wrong = Executable::<doc_polynomial>::new(&Frame::new().attribute("coefficients", "1 x"));
/// assert_eq!(
///     wrong.unwrap_err().message(),
///     "attribute \"coefficients\": invalid float literal"
/// );
/// # Ok::<(), xla_ffi::Error>(())
/// ```
///
/// | stage | written as | when |
/// |---|---|---|
/// | instantiate | `state { name: Type = expression }` | once for each custom call of a program, while it is compiled |
/// | prepare | `prepare { ... Ok(()) }` | before each execution, to ask for resources |
/// | initialize | `initialize { ... Ok(()) }` | before each execution, when the resources are there |
/// | execute | the body | in each execution |
///
/// All but the body can be left out, and come in this order. The attributes are there in each of them, and
/// checked in each: with a `state`, a wrong attribute is an error when the program is compiled. Operands and
/// results are there in the body only.
///
/// Before the body can be `user_data { name: Type = "its.name" }`, what the caller of this very execution adds to it,
/// see [`FromUserData`](crate::FromUserData):
///
/// ```
/// xla_ffi::export! {
///     /// y = the first byte of the user data.
///     pub fn doc_first_byte() -> (y: xla_ffi::Ret<u8>)
///     user_data { bytes: &[u8] = "com.example.bytes" }
///     {
///         y.fill(bytes.first().copied().unwrap_or(0));
///         Ok(())
///     }
/// }
///
/// use xla_ffi::testing::{Executable, Frame};
///
/// let mut frame = Frame::new().result::<u8>(&[]).user_data("com.example.bytes", b"A");
/// Executable::<doc_first_byte>::new(&frame)?.run(&mut frame)?;
/// assert_eq!(frame.values::<u8>(0), [65]);
/// # Ok::<(), xla_ffi::Error>(())
/// ```
///
/// The expression of the `state` can fail with `?`. What it makes is `name` in the later parts, as a `&Type`.
/// Executions on several threads share it, so it is [`Send`], [`Sync`] and `'static`; XLA drops it together with
/// the executable, on any thread. A panic in its `drop` is caught, and nobody is told.
///
/// The function for the instantiate stage is exported as the handler's name and `_instantiate`, and those for the
/// other stages likewise. XLA calls the stages that are registered and no others: a handler with a `state` whose
/// body is registered alone fails in each execution, with a message that says why.
///
/// The stages prepare and initialize are for accelerators: XLA's CPU plugins, as of PJRT 0.115, take them and do
/// not call them. What has to happen belongs in the state or in the body.
#[macro_export]
macro_rules! export {
    () => {};

    // One handler, of parts most of which can be left out.
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($operands:tt)*) -> ($($results:tt)*)
        $(attrs { $($attrs:tt)* })?
        $(state { $state:ident: $state_type:ty = $make:expr })?
        $(prepare $prepare:block)?
        $(initialize $initialize:block)?
        $(user_data { $($user_data:tt)* })?
        $body:block
        $($rest:tt)*
    ) => {
        $crate::export! {
            @attributes [$($($attrs)*)?]
            [$(#[$meta])* $vis] $name [$($operands)*] [$($results)*]
            [$($state: $state_type = $make)?] [$($prepare)?] [$($initialize)?]
            [$($($user_data)*)?] $body
        }
        $crate::export! { $($rest)* }
    };

    // All attributes are listed.
    (@attributes [$($attr:ident: $attr_type:ty),* $(,)?] $($rest:tt)*) => {
        $crate::export! { @unused [$($attr: $attr_type,)*] [] $($rest)* }
    };

    // There can be others.
    (@attributes [$($attr:ident: $attr_type:ty,)* .. $($all:ident)?] $($rest:tt)*) => {
        $crate::export! { @unused [$($attr: $attr_type,)*] [.. $($all)?] $($rest)* }
    };

    // Attributes that are for the state only need no use in the body. Without a state they do, and
    // `cfg(all())`, which says nothing, stands where the lint's level would.
    (
        @unused $attrs:tt $all:tt $head:tt $name:ident $operands:tt $results:tt [] $($rest:tt)*
    ) => {
        $crate::export! {
            @define [cfg(all())] $attrs $all $head $name $operands $results [] $($rest)*
        }
    };
    (
        @unused $attrs:tt $all:tt $head:tt $name:ident $operands:tt $results:tt $state:tt $($rest:tt)*
    ) => {
        $crate::export! {
            @define [allow(unused_variables)] $attrs $all $head $name $operands $results $state $($rest)*
        }
    };

    (
        @define $unused:tt $attrs:tt $all:tt [$(#[$meta:meta])* $vis:vis] $name:ident
        $operands:tt $results:tt $state:tt $prepare:tt $initialize:tt $user_data:tt $body:block
    ) => {
        $crate::export! {
            @execute $unused $attrs $all [$(#[$meta])* $vis] $name $operands $results $state
            $user_data $body
        }

        // The handler as a type without values, which is where its stages find each other.
        #[doc(hidden)]
        #[allow(non_camel_case_types, missing_debug_implementations, dead_code)]
        $vis enum $name {}

        #[allow(dead_code)]
        impl $name {
            const DEFINITION: $crate::__private::Definition =
                $crate::export!(@definition $operands $results $attrs $all);
            $crate::export! { @state $name $attrs $all $state }
            $crate::export! { @early prepare STAGE_PREPARE $name $attrs $all $state $prepare }
            $crate::export! { @early initialize STAGE_INITIALIZE $name $attrs $all $state $initialize }
        }

        // SAFETY: the functions are the handlers of the stages that they are named for.
        unsafe impl $crate::Stages for $name {
            const STAGES: $crate::sys::Stages = $crate::sys::Stages {
                instantiate: $crate::export!(@optional $state $name::instantiate),
                prepare: $crate::export!(@optional $prepare $name::prepare),
                initialize: $crate::export!(@optional $initialize $name::initialize),
                execute: $name,
            };
        }
    };

    (
        @definition
        [$($operand:ident: $operand_type:ty),* $(,)?]
        [$($result:ident: $result_type:ty),* $(,)?]
        [$($attr:ident: $attr_type:ty,)*]
        [$(.. $($all:ident)?)?]
    ) => {
        $crate::__private::Definition {
            stage: $crate::sys::STAGE_EXECUTE,
            traits: 0,
            operands: &[$(<$operand_type as $crate::FromOperands<'_>>::ARITY),*],
            results: &[$(<$result_type as $crate::FromResults<'_>>::ARITY),*],
            attributes: $crate::export!(@names [$($attr)*] $(.. $($all)?)?),
        }
    };

    (
        @execute [$unused:meta]
        [$($attr:ident: $attr_type:ty,)*] [$(.. $($all:ident)?)?]
        [$(#[$meta:meta])* $vis:vis] $name:ident
        [$($operand:ident: $operand_type:ty),* $(,)?]
        [$($result:ident: $result_type:ty),* $(,)?]
        [$($state:ident: $state_type:ty = $make:expr)?]
        [$($user:ident: $user_type:ty = $user_name:literal),* $(,)?]
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
                $(#[$unused] $attr: $attr_type,)*
                $($(#[$unused] $all: $crate::Attrs<'_>,)?)?
                $(#[allow(unused_variables)] $state: &$state_type,)?
                $($user: $user_type,)*
            ) -> $crate::Result<()> $body

            const DEFINITION: $crate::__private::Definition = $name::DEFINITION;
            const _: () = assert!(
                $crate::__private::in_order(DEFINITION.operands)
                    && $crate::__private::in_order(DEFINITION.results),
                "an Option can be followed by others and a Vec only, a Vec by nothing"
            );

            // SAFETY: only XLA calls this, with a frame of its own and buffers in memory of the host. It drops
            // the state no earlier than the executable, which is not while the executable runs, and who adds
            // user data keeps it for the whole execution.
            unsafe {
                $crate::__private::run(frame, &DEFINITION, None, |call| {
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
                        $($($crate::export!(@first call.attributes; $all),)?)?
                        $($crate::export!(@first $name::state().get(call.context)?; $state),)?
                        $(call.context.user_data($user_name)?,)*
                    )
                })
            }
        }
    };

    // The stage that makes the state.
    (@state $name:ident $attrs:tt $all:tt []) => {};
    (
        @state $name:ident
        [$($attr:ident: $attr_type:ty,)*] [$(.. $($all:ident)?)?]
        [$state:ident: $state_type:ty = $make:expr]
    ) => {
        fn state() -> &'static $crate::__private::State<$state_type> {
            static STATE: $crate::__private::State<$state_type> = $crate::__private::State::new();
            &STATE
        }

        #[unsafe(export_name = ::core::concat!(::core::stringify!($name), "_instantiate"))]
        unsafe extern "C" fn instantiate(
            frame: *mut $crate::sys::CallFrame,
        ) -> *mut $crate::sys::Error {
            #[allow(
                unused_variables, unreachable_code, elided_lifetimes_in_paths,
                clippy::too_many_arguments, clippy::unnecessary_wraps
            )]
            fn make(
                $($attr: $attr_type,)*
                $($($all: $crate::Attrs<'_>,)?)?
            ) -> $crate::Result<$state_type> {
                ::core::result::Result::Ok($make)
            }

            const DEFINITION: $crate::__private::Definition =
                $name::DEFINITION.of_stage($crate::sys::STAGE_INSTANTIATE);
            let state = $name::state();
            // SAFETY: only XLA calls this, with a frame of its own.
            unsafe {
                $crate::__private::run(frame, &DEFINITION, ::core::option::Option::Some(state.raw()), |call| {
                    let _ = &call;
                    let value = make(
                        $(call.attributes.get(
                            $crate::__private::parameter_name(::core::stringify!($attr)),
                        )?,)*
                        $($($crate::export!(@first call.attributes; $all),)?)?
                    )?;
                    state.set(call.context, value)
                })
            }
        }
    };

    // A stage between those two.
    (@early $stage:ident $constant:ident $name:ident $attrs:tt $all:tt $state:tt []) => {};
    (
        @early $stage:ident $constant:ident $name:ident
        [$($attr:ident: $attr_type:ty,)*] [$(.. $($all:ident)?)?]
        [$($state:ident: $state_type:ty = $make:expr)?]
        [$body:block]
    ) => {
        #[unsafe(export_name = ::core::concat!(
            ::core::stringify!($name), "_", ::core::stringify!($stage)
        ))]
        unsafe extern "C" fn $stage(
            frame: *mut $crate::sys::CallFrame,
        ) -> *mut $crate::sys::Error {
            #[allow(unused_variables, elided_lifetimes_in_paths, clippy::too_many_arguments)]
            fn body(
                $($attr: $attr_type,)*
                $($($all: $crate::Attrs<'_>,)?)?
                $($state: &$state_type,)?
            ) -> $crate::Result<()> $body

            const DEFINITION: $crate::__private::Definition =
                $name::DEFINITION.of_stage($crate::sys::$constant);
            // SAFETY: only XLA calls this, with a frame of its own, and drops the state no earlier than the
            // executable.
            unsafe {
                $crate::__private::run(frame, &DEFINITION, ::core::option::Option::None, |call| {
                    // Not every handler has attributes or a state to take from it.
                    let _ = &call;
                    body(
                        $(call.attributes.get(
                            $crate::__private::parameter_name(::core::stringify!($attr)),
                        )?,)*
                        $($($crate::export!(@first call.attributes; $all),)?)?
                        $($crate::export!(@first $name::state().get(call.context)?; $state),)?
                    )
                })
            }
        }
    };

    (@optional [] $stage:path) => { ::core::option::Option::None };
    (@optional $part:tt $stage:path) => { ::core::option::Option::Some($stage) };

    (@names [$($attr:ident)*]) => {
        ::core::option::Option::Some(&[
            $($crate::__private::parameter_name(::core::stringify!($attr))),*
        ])
    };

    (@names [$($attr:ident)*] .. $($all:ident)?) => {
        ::core::option::Option::None
    };

    // The second is here to say how often this is expanded: once or not at all.
    (@first $value:expr; $name:ident) => {
        $value
    };
}
