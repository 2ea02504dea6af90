//! XLA FFI handlers that the test suite loads into XLA and calls from compiled programs.
//!
//! Each is one small, checkable behaviour; the exported name is that of the function.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use xla_ffi::{
    sys, AliasedArg, AnyArg, AnyRet, Arg, Attrs, Bytes, Code, DataType, Element, Error, Result, Ret,
};

fn same_len<T: Element>(x: &Arg<'_, T>, y: &Ret<'_, T>) -> Result<()> {
    if x.len() == y.len() {
        Ok(())
    } else {
        Err(y.error(format!("expected as many elements as in {x:?}, found {y}")))
    }
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| item.to_string()).collect();
    match items.is_empty() {
        true => "none".to_string(),
        false => items.join(", "),
    }
}

static NOTHING_CALLS: AtomicI64 = AtomicI64::new(0);
static FACTORS_MADE: AtomicI64 = AtomicI64::new(0);
static FACTORS_ALIVE: AtomicI64 = AtomicI64::new(0);

/// A number that was read from text.
struct Factor(f32);

impl Factor {
    fn parse(text: &str) -> Result<Self> {
        let factor = text
            .parse()
            .map_err(|error| Error::invalid_argument(format!("attribute \"factor\": {error}")))?;
        FACTORS_MADE.fetch_add(1, Ordering::SeqCst);
        FACTORS_ALIVE.fetch_add(1, Ordering::SeqCst);
        Ok(Self(factor))
    }
}

impl Drop for Factor {
    fn drop(&mut self) {
        FACTORS_ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

xla_ffi::export! {
    /// y = a + b. Refuses a result in the memory of an operand.
    pub fn test_add_f32(a: Arg<f32>, b: Arg<f32>) -> (y: Ret<f32>) {
        same_len(&a, &y)?;
        same_len(&b, &y)?;
        for ((y, a), b) in y.iter_mut().zip(a.iter()).zip(b.iter()) {
            *y = a + b;
        }
        Ok(())
    }

    /// y = factor * x, in place where x and y share memory.
    pub fn test_scale_f32(x: AliasedArg<f32>) -> (y: Ret<f32>)
    attrs { factor: f32 }
    {
        y.copy_from(&x)?;
        y.iter_mut().for_each(|y| *y *= factor);
        Ok(())
    }

    /// y = x, of any types of the same size in bytes; nothing to do where x and y share memory.
    pub fn test_copy(x: AnyArg) -> (y: AnyRet) {
        y.copy_from(&x)
    }

    /// The elements of x in the order they lie in memory, as one dimension: shows what layout XLA passes.
    pub fn test_physical_order(x: Arg<f32>) -> (y: Ret<f32>) {
        let [_] = y.shape()?;
        same_len(&x, &y)?;
        y.copy_from_slice(&x);
        Ok(())
    }

    /// The bytes of the string `s`.
    pub fn test_attr_bytes() -> (y: Ret<u8>)
    attrs { s: Bytes }
    {
        if s.len() != y.len() {
            return Err(y.error(format!("{} bytes for a string of {}", y.len(), s.len())));
        }
        y.copy_from_slice(&s);
        Ok(())
    }

    /// All that the frame holds, as text in result 0 that ends with zeroes; other results are zeroed.
    pub fn test_describe(operands: Vec<AnyArg>) -> (text: Ret<u8>, others: Vec<AnyRet>)
    attrs { ..attributes }
    {
        describe(&operands, text, others, attributes)
    }

    /// The error of the given code (INTERNAL unless given) and message, whatever the operands and results.
    pub fn test_fail(_operands: Vec<AnyArg>) -> (_results: Vec<AnyRet>)
    attrs { message: Option<&str>, code: Option<i32> }
    {
        let code = match code {
            None => Code::Internal,
            Some(raw) => Code::from_raw(raw)
                .ok_or_else(|| Error::invalid_argument(format!("attribute \"code\": no error has code {raw}")))?,
        };
        Err(Error::new(code, message.unwrap_or("test_fail was called")))
    }

    /// Panics, whatever the operands and results.
    #[allow(clippy::panic)]
    pub fn test_panic(_operands: Vec<AnyArg>) -> (_results: Vec<AnyRet>) {
        // Its words reach the caller as an error; the terminal of a test run is no place for them.
        std::panic::set_hook(Box::new(|_| {}));
        panic!("boom from test_panic")
    }

    /// The sum of all operands, element by element.
    pub fn test_sum_all(xs: Vec<Arg<f32>>) -> (y: Ret<f32>) {
        y.fill(0.0);
        for x in xs {
            same_len(&x, &y)?;
            y.iter_mut().zip(x.iter()).for_each(|(y, x)| *y += x);
        }
        Ok(())
    }

    /// 0, 1, 2 and so on.
    pub fn test_iota() -> (y: Ret<f32>) {
        for (index, y) in y.iter_mut().enumerate() {
            *y = index as f32;
        }
        Ok(())
    }

    /// No results; counts its calls.
    pub fn test_nothing(_operands: Vec<AnyArg>) -> () {
        NOTHING_CALLS.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// How often `test_nothing` was called since the library was loaded.
    pub fn test_call_count() -> (count: Ret<i64>) {
        count.fill(NOTHING_CALLS.load(Ordering::SeqCst));
        Ok(())
    }

    /// Copies the one f32 operand to the one f32 result; all others must be tokens.
    pub fn test_token(operands: Vec<AnyArg>) -> (results: Vec<AnyRet>) {
        token(operands, results)
    }

    /// y = x after `ms` milliseconds.
    pub fn test_sleep_ms(x: AnyArg) -> (y: AnyRet)
    attrs { ms: i64 }
    {
        let ms = u64::try_from(ms)
            .map_err(|_| Error::invalid_argument(format!("attribute \"ms\": {ms} is negative")))?;
        std::thread::sleep(Duration::from_millis(ms));
        y.copy_from(&x)
    }

    /// y = factor * x, with a factor that is parsed once for each executable.
    pub fn test_parsed_scale_f32(x: Arg<f32>) -> (y: Ret<f32>)
    attrs { factor: &str }
    state { parsed: Factor = Factor::parse(factor)? }
    {
        same_len(&x, &y)?;
        y.iter_mut().zip(x.iter()).for_each(|(y, x)| *y = parsed.0 * x);
        Ok(())
    }

    /// The same, uncounted.
    pub fn test_kept_scale_f32(x: Arg<f32>) -> (y: Ret<f32>)
    attrs { factor: &str }
    state {
        kept: f32 = factor.parse().map_err(|error| Error::invalid_argument(format!("{error}")))?
    }
    {
        same_len(&x, &y)?;
        y.iter_mut().zip(x.iter()).for_each(|(y, x)| *y = kept * x);
        Ok(())
    }

    /// How many factors `test_parsed_scale_f32` has parsed, and how many of them are alive.
    pub fn test_factor_counts() -> (made: Ret<i64>, alive: Ret<i64>) {
        made.fill(FACTORS_MADE.load(Ordering::SeqCst));
        alive.fill(FACTORS_ALIVE.load(Ordering::SeqCst));
        Ok(())
    }

    /// Every byte of the result is `byte`.
    pub fn test_fill_bytes() -> (y: AnyRet)
    attrs { byte: u8 }
    {
        y.as_bytes_mut()?.fill(byte);
        Ok(())
    }

    /// y = x, and whether x and y share memory as 1 or 0.
    pub fn test_shares_memory(x: AliasedArg<f32>) -> (y: Ret<f32>, shared: Ret<i32>) {
        y.copy_from(&x)?;
        shared.fill(x.is_aliased().into());
        Ok(())
    }

    /// Where the operand's memory starts.
    pub fn test_address(x: AnyArg) -> (address: Ret<u64>) {
        address.fill(x.as_ptr() as u64);
        Ok(())
    }
}

xla_ffi::export! {
    /// y = a byte of what the caller gave, 0 for the second if it gave none.
    pub fn test_user_data() -> (y: Ret<u8>)
    user_data { first: &[u8] = "test.first", second: Option<&[u8]> = "test.second" }
    {
        let byte = |data: &[u8]| data.last().copied().unwrap_or(0);
        y.fill(byte(first).wrapping_add(second.map_or(0, byte)));
        Ok(())
    }
}

xla_ffi::library! {
    "table.copy" => test_copy,
    "table.parsed_scale" => test_parsed_scale_f32,
    "table.factor_counts" => test_factor_counts,
}

fn describe(
    operands: &[AnyArg<'_>],
    mut text: Ret<'_, u8>,
    mut others: Vec<AnyRet<'_>>,
    attributes: Attrs<'_>,
) -> Result<()> {
    let results = std::iter::once(text.to_string()).chain(others.iter().map(AnyRet::to_string));
    let description = format!(
        "operands: {}; results: {}; attributes: {}",
        list(operands),
        list(results),
        match attributes.is_empty() {
            true => "none".to_string(),
            false => attributes.to_string(),
        },
    );
    let Some((head, tail)) = text.split_at_mut_checked(description.len()) else {
        let (room, needed) = (text.len(), description.len());
        return Err(text.error(format!("{room} bytes for a description of {needed}")));
    };
    head.copy_from_slice(description.as_bytes());
    tail.fill(0);
    for other in &mut others {
        other.as_bytes_mut()?.fill(0);
    }
    Ok(())
}

fn token(operands: Vec<AnyArg<'_>>, results: Vec<AnyRet<'_>>) -> Result<()> {
    let one = |what, count| match count {
        1 => Ok(()),
        _ => Err(Error::invalid_argument(format!(
            "expected one {what} besides tokens, found {count}"
        ))),
    };
    let operands: Vec<_> = operands
        .into_iter()
        .filter(|x| x.data_type() != DataType::Token)
        .collect();
    let results: Vec<_> = results
        .into_iter()
        .filter(|y| y.data_type() != DataType::Token)
        .collect();
    one("operand", operands.len())?;
    one("result", results.len())?;
    for (x, y) in operands.into_iter().zip(results) {
        y.typed::<f32>()?.copy_from(&x.aliased()?)?;
    }
    Ok(())
}

/// Says nothing when XLA asks for its metadata, so XLA cannot register it; does nothing when called.
///
/// # Safety
///
/// For XLA to call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn test_no_metadata(_frame: *mut sys::CallFrame) -> *mut sys::Error {
    std::ptr::null_mut()
}
