use crate::{sys, DataType, Element, Error, Pred, Result};
use half::{bf16, f16};
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ops::Deref;
use std::{fmt, ptr, slice};

/// How deep [`Display`](fmt::Display) follows dictionaries in dictionaries.
const MAX_DISPLAY_DEPTH: usize = 32;

/// The attributes of a call, or those in a dictionary among them.
///
/// ```
/// # use xla_ffi::{Attrs, Result};
/// fn read(attrs: Attrs) -> Result<()> {
///     let scale: f32 = attrs.get("scale")?;
///     let causal: Option<bool> = attrs.get("causal")?;
///     let window: &[i64] = attrs.get("window")?;
///     let options: Attrs = attrs.get("options")?;
///     let name: &str = options.get("name")?;
///     # let _ = (scale, causal, window, name);
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Attrs<'a> {
    kinds: &'a [c_int],
    names: &'a [*mut sys::ByteSpan],
    items: &'a [*mut c_void],
}

impl<'a> Attrs<'a> {
    /// # Safety
    ///
    /// `attributes` points to attributes as XLA passes them, which stay as they are for `'a`.
    pub(crate) unsafe fn decode(attributes: *const sys::Attributes) -> Result<Self> {
        // SAFETY: the caller vouches for the pointer; every XLA struct starts with its size.
        let struct_size = unsafe { (*attributes).struct_size };
        if !sys::covers!(struct_size, sys::Attributes, items: *mut *mut c_void) {
            return Err(Error::internal(format!(
                "the description of attributes has {struct_size} bytes only"
            )));
        }
        // SAFETY: the size covers the last field, hence all of the struct.
        let sys::Attributes {
            len,
            kinds,
            names,
            items,
            ..
        } = unsafe { attributes.read() };
        let attrs = match usize::try_from(len) {
            Ok(0) => Self {
                kinds: &[],
                names: &[],
                items: &[],
            },
            Ok(len) if !kinds.is_null() && !names.is_null() && !items.is_null() => {
                // SAFETY: XLA passes three arrays of `len` elements, which the caller vouches for.
                unsafe {
                    Self {
                        kinds: slice::from_raw_parts(kinds, len),
                        names: slice::from_raw_parts(names, len),
                        items: slice::from_raw_parts(items, len),
                    }
                }
            }
            _ => {
                return Err(Error::internal(format!(
                    "{len} attributes without that many values"
                )))
            }
        };
        if attrs.names.iter().any(|name| name.is_null())
            || attrs.items.iter().any(|item| item.is_null())
        {
            return Err(Error::internal("an attribute without a name or a value"));
        }
        Ok(attrs)
    }

    /// The number of attributes.
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// The attributes in the order of the frame, which XLA sorts by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Attr<'a>> + Clone + use<'a> {
        let Self {
            kinds,
            names,
            items,
        } = *self;
        (0..kinds.len()).map(move |index| Attr {
            // SAFETY: `decode` has seen that it is not null, and XLA's names last as long as the frame.
            name: unsafe { bytes(names[index]) },
            kind: kinds[index],
            item: items[index],
            memory: PhantomData,
        })
    }

    /// The attribute of this name.
    pub fn find(&self, name: &str) -> Option<Attr<'a>> {
        // Handlers have a handful of attributes: looking at all of them is as fast as a binary search, and
        // right even if they are not sorted.
        self.iter().find(|attr| attr.name == name.as_bytes())
    }

    /// The value of an attribute. It is an error if the attribute is of another type, or if there is none of
    /// this name, unless an `Option` is asked for.
    pub fn get<T: FromAttr<'a>>(&self, name: &str) -> Result<T> {
        match self.find(name) {
            Some(attr) => attr.get(),
            None => T::missing().ok_or_else(|| {
                Error::invalid_argument(format!(
                    "attribute {name:?}: missing, expected {}",
                    T::expected()
                ))
            }),
        }
    }

    /// An error if there are attributes of other names than these.
    pub fn only(&self, names: &[&str]) -> Result<()> {
        let known = |attr: &Attr<'_>| names.iter().any(|name| attr.name == name.as_bytes());
        match self.iter().find(|attr| !known(attr)) {
            None => Ok(()),
            Some(attr) => Err(Error::invalid_argument(format!(
                "attribute {}: unexpected, the handler takes {}",
                quoted(attr.name),
                match names {
                    [] => "none".to_string(),
                    names => names
                        .iter()
                        .map(|name| format!("{name:?}"))
                        .collect::<Vec<_>>()
                        .join(", "),
                }
            ))),
        }
    }

    fn fmt_nested(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        for (index, attr) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            match std::str::from_utf8(attr.name) {
                Ok(name) => f.write_str(name)?,
                Err(_) => f.write_str(&quoted(attr.name))?,
            }
            f.write_str("=")?;
            match attr.value() {
                Ok(value) => value.fmt_nested(f, depth)?,
                Err(error) => write!(f, "<{error}>")?,
            }
        }
        Ok(())
    }
}

/// Names and values: `causal=pred true, scale=f32 0.5`.
impl fmt::Display for Attrs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_nested(f, 0)
    }
}

impl fmt::Debug for Attrs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// # Safety
///
/// `span` points to a span as XLA passes it, which stays as it is for `'a`.
unsafe fn bytes<'a>(span: *const sys::ByteSpan) -> &'a [u8] {
    // SAFETY: the caller vouches for it.
    let sys::ByteSpan { pointer, len } = unsafe { *span };
    if pointer.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: XLA passes `len` bytes at `pointer`, which the caller vouches for.
    unsafe { slice::from_raw_parts(pointer.cast(), len) }
}

fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("\"{}\"", bytes.escape_ascii()),
    }
}

/// An attribute: a name and a value.
#[derive(Clone, Copy)]
pub struct Attr<'a> {
    name: &'a [u8],
    kind: c_int,
    item: *const c_void,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Attr<'a> {
    /// The name, which can be any bytes.
    pub fn name(&self) -> &'a [u8] {
        self.name
    }

    /// The value, whatever it is.
    pub fn value(&self) -> Result<AttrValue<'a>> {
        match self.kind {
            sys::ATTRIBUTE_SCALAR => {
                // SAFETY: XLA passes this struct for this kind of attribute, and `Attrs::decode` has seen
                // that the pointer is not null.
                let sys::Scalar { data_type, value } = unsafe { *self.item.cast::<sys::Scalar>() };
                if value.is_null() {
                    return Err(self.error("a scalar without a value"));
                }
                Ok(AttrValue::Scalar(Scalar {
                    data_type: DataType::from_raw(data_type),
                    value: value.cast_const(),
                    memory: PhantomData,
                }))
            }
            sys::ATTRIBUTE_ARRAY => {
                // SAFETY: as for scalars.
                let sys::Array {
                    data_type,
                    len,
                    data,
                } = unsafe { *self.item.cast::<sys::Array>() };
                let data_type = DataType::from_raw(data_type);
                let size = data_type.byte_size().unwrap_or(1).checked_mul(len);
                if (data.is_null() && len > 0) || size.is_none_or(|size| size > isize::MAX as usize)
                {
                    return Err(self.error(format!(
                        "an array of {len} elements without memory for them"
                    )));
                }
                Ok(AttrValue::Array(Array {
                    data_type,
                    len,
                    data: data.cast_const(),
                    memory: PhantomData,
                }))
            }
            sys::ATTRIBUTE_STRING => {
                // SAFETY: as for scalars.
                Ok(AttrValue::String(unsafe { bytes(self.item.cast()) }))
            }
            sys::ATTRIBUTE_DICTIONARY => {
                // SAFETY: as for scalars.
                unsafe { Attrs::decode(self.item.cast()) }
                    .map(AttrValue::Dictionary)
                    .map_err(|error| self.error(error))
            }
            kind => Ok(AttrValue::Unknown(kind)),
        }
    }

    /// The value, which must be of this type.
    pub fn get<T: FromAttr<'a>>(&self) -> Result<T> {
        T::from_value(self.value()?).map_err(|error| self.error(error))
    }

    fn error(&self, message: impl fmt::Display) -> Error {
        Error::invalid_argument(format!("attribute {}: {message}", quoted(self.name)))
    }
}

impl fmt::Debug for Attr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_tuple("Attr");
        debug
            .field(&quoted(self.name))
            .field(&self.value())
            .finish()
    }
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum AttrValue<'a> {
    /// A number or a boolean.
    Scalar(Scalar<'a>),
    /// Numbers or booleans of one type.
    Array(Array<'a>),
    /// Text, or any other bytes.
    String(&'a [u8]),
    /// Attributes again.
    Dictionary(Attrs<'a>),
    /// A value of this kind, which this crate has no name for.
    Unknown(i32),
}

impl AttrValue<'_> {
    fn mismatch(&self, expected: impl fmt::Display) -> Error {
        let found = match self {
            Self::Scalar(scalar) => scalar.data_type.to_string(),
            Self::Array(array) => format!("an array of {}", array.data_type),
            Self::String(bytes) if std::str::from_utf8(bytes).is_err() => {
                "a string that is not UTF-8".to_string()
            }
            Self::String(_) => "a string".to_string(),
            Self::Dictionary(_) => "a dictionary".to_string(),
            Self::Unknown(kind) => format!("a value of unknown kind {kind}"),
        };
        Error::invalid_argument(format!("expected {expected}, found {found}"))
    }

    fn fmt_nested(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        match self {
            Self::Scalar(scalar) => fmt::Display::fmt(scalar, f),
            Self::Array(array) => fmt::Display::fmt(array, f),
            Self::String(bytes) => f.write_str(&quoted(bytes)),
            Self::Dictionary(_) if depth >= MAX_DISPLAY_DEPTH => f.write_str("{...}"),
            Self::Dictionary(attrs) => {
                f.write_str("{")?;
                attrs.fmt_nested(f, depth + 1)?;
                f.write_str("}")
            }
            Self::Unknown(kind) => write!(f, "<kind {kind}>"),
        }
    }
}

/// Type and value: `f32 0.5`, `s64[1,2]`, `"text"`, `{a=s32 1}`.
impl fmt::Display for AttrValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_nested(f, 0)
    }
}

/// A number or a boolean of any type.
#[derive(Clone, Copy)]
pub struct Scalar<'a> {
    data_type: DataType,
    value: *const c_void,
    memory: PhantomData<&'a [u8]>,
}

impl Scalar<'_> {
    /// The type of the value.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The value, which must be of this type.
    pub fn get<T: Element>(&self) -> Result<T> {
        if self.data_type != T::DATA_TYPE {
            return Err(AttrValue::Scalar(*self).mismatch(T::DATA_TYPE));
        }
        // SAFETY: not null as `Attr::value` has seen; XLA passes a value of the type it states there, and any
        // bytes are a T.
        Ok(unsafe { self.value.cast::<T>().read_unaligned() })
    }
}

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let data_type = self.data_type;
        write!(f, "{data_type} ")?;
        // SAFETY: one value of the type, as in `get`.
        unsafe { fmt_elements(f, data_type, self.value, 1) }
    }
}

impl fmt::Debug for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Numbers or booleans of one type.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    data_type: DataType,
    len: usize,
    data: *const c_void,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Array<'a> {
    /// The type of the elements.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, which must be of this type.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        if self.data_type != T::DATA_TYPE {
            let expected = format_args!("an array of {}", T::DATA_TYPE);
            return Err(AttrValue::Array(*self).mismatch(expected));
        }
        if self.len == 0 {
            return Ok(&[]);
        }
        if !self.data.cast::<T>().is_aligned() {
            return Err(Error::internal(format!(
                "an array of {} that is not aligned",
                T::DATA_TYPE
            )));
        }
        // SAFETY: not null and not too large as `Attr::value` has seen, aligned; XLA passes `len` elements of
        // the type it states there for 'a, and any bytes are a T.
        Ok(unsafe { slice::from_raw_parts(self.data.cast(), self.len) })
    }
}

impl fmt::Display for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.data_type)?;
        // SAFETY: `len` values of the type, as in `as_slice`.
        unsafe { fmt_elements(f, self.data_type, self.data, self.len) }?;
        f.write_str("]")
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// # Safety
///
/// There are `len` elements of the type at `data`.
unsafe fn fmt_elements(
    f: &mut fmt::Formatter<'_>,
    data_type: DataType,
    data: *const c_void,
    len: usize,
) -> fmt::Result {
    macro_rules! write_as {
        ($($type:ty),*) => {
            match data_type {
                $(<$type as Element>::DATA_TYPE => for index in 0..len {
                    if index > 0 {
                        f.write_str(",")?;
                    }
                    // SAFETY: the caller vouches for `len` elements of this type, and any bytes are one.
                    let value = unsafe { ptr::read_unaligned(data.cast::<$type>().add(index)) };
                    write!(f, "{value:?}")?;
                },)*
                _ => f.write_str("?")?,
            }
        };
    }
    write_as!(Pred, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, [f32; 2], [f64; 2]);
    Ok(())
}

/// A string attribute as bytes, which need not be UTF-8.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// The bytes, for as long as the call lasts.
    pub fn as_slice(&self) -> &'a [u8] {
        self.0
    }
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted(self.0))
    }
}

/// A type that an attribute can be read as.
///
/// | Rust | attribute |
/// |---|---|
/// | `bool` | a `pred` scalar |
/// | `i8` to `i64`, `u8` to `u64`, `f32`, `f64`, `half::f16`, `half::bf16` | a scalar of that very type |
/// | `[f32; 2]`, `[f64; 2]` | a complex scalar |
/// | `&[T]` | an array of that type |
/// | `&str` | a string that is UTF-8 |
/// | [`Bytes`] | a string |
/// | [`Attrs`] | a dictionary |
/// | [`AttrValue`] | anything |
/// | `Option<T>` | `T`, or no such attribute |
#[diagnostic::on_unimplemented(
    message = "an attribute cannot be read as `{Self}`",
    note = "see the table in the documentation of `xla_ffi::FromAttr`"
)]
pub trait FromAttr<'a>: Sized {
    /// What an attribute must be, for the message of an error.
    fn expected() -> String;

    /// Reads the value.
    fn from_value(value: AttrValue<'a>) -> Result<Self>;

    /// The value where there is no such attribute, if that is allowed.
    fn missing() -> Option<Self> {
        None
    }
}

macro_rules! from_scalar {
    ($($type:ty),*) => {
        $(
            impl<'a> FromAttr<'a> for $type {
                fn expected() -> String {
                    <$type as Element>::DATA_TYPE.to_string()
                }

                fn from_value(value: AttrValue<'a>) -> Result<Self> {
                    match value {
                        AttrValue::Scalar(scalar) => scalar.get(),
                        other => Err(other.mismatch(Self::expected())),
                    }
                }
            }
        )*
    };
}

from_scalar!(Pred, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, [f32; 2], [f64; 2]);

impl<'a> FromAttr<'a> for bool {
    fn expected() -> String {
        Pred::expected()
    }

    fn from_value(value: AttrValue<'a>) -> Result<Self> {
        Pred::from_value(value).map(Pred::get)
    }
}

impl<'a, T: Element> FromAttr<'a> for &'a [T] {
    fn expected() -> String {
        format!("an array of {}", T::DATA_TYPE)
    }

    fn from_value(value: AttrValue<'a>) -> Result<Self> {
        match value {
            AttrValue::Array(array) => array.as_slice(),
            other => Err(other.mismatch(Self::expected())),
        }
    }
}

impl<'a> FromAttr<'a> for &'a str {
    fn expected() -> String {
        "a UTF-8 string".to_string()
    }

    fn from_value(value: AttrValue<'a>) -> Result<Self> {
        match value {
            AttrValue::String(bytes) => {
                std::str::from_utf8(bytes).map_err(|_| value.mismatch(Self::expected()))
            }
            other => Err(other.mismatch(Self::expected())),
        }
    }
}

impl<'a> FromAttr<'a> for Bytes<'a> {
    fn expected() -> String {
        "a string".to_string()
    }

    fn from_value(value: AttrValue<'a>) -> Result<Self> {
        match value {
            AttrValue::String(bytes) => Ok(Self(bytes)),
            other => Err(other.mismatch(Self::expected())),
        }
    }
}

impl<'a> FromAttr<'a> for Attrs<'a> {
    fn expected() -> String {
        "a dictionary".to_string()
    }

    fn from_value(value: AttrValue<'a>) -> Result<Self> {
        match value {
            AttrValue::Dictionary(attrs) => Ok(attrs),
            other => Err(other.mismatch(Self::expected())),
        }
    }
}

impl<'a> FromAttr<'a> for AttrValue<'a> {
    fn expected() -> String {
        "any value".to_string()
    }

    fn from_value(value: AttrValue<'a>) -> Result<Self> {
        Ok(value)
    }
}

impl<'a, T: FromAttr<'a>> FromAttr<'a> for Option<T> {
    fn expected() -> String {
        T::expected()
    }

    fn from_value(value: AttrValue<'a>) -> Result<Self> {
        T::from_value(value).map(Some)
    }

    fn missing() -> Option<Self> {
        Some(None)
    }
}
