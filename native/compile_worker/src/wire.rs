//! Numbers, bytes and lists as messages are made of.

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {what} at byte {at}")]
pub struct Malformed {
    pub what: String,
    pub at: usize,
}

#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn i32(&mut self, value: i32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn i64(&mut self, value: i64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn f64(&mut self, value: f64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(u8::from(value))
    }

    /// A count. What does not fit a frame never gets as far as its reader.
    pub(crate) fn count(&mut self, value: usize) -> &mut Self {
        self.u32(u32::try_from(value).unwrap_or(u32::MAX))
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.count(value.len());
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn list<T>(
        &mut self,
        items: &[T],
        mut write: impl FnMut(&mut Self, &T),
    ) -> &mut Self {
        self.count(items.len());
        for item in items {
            write(self, item);
        }
        self
    }

    pub(crate) fn optional<T>(
        &mut self,
        item: Option<T>,
        write: impl FnOnce(&mut Self, T),
    ) -> &mut Self {
        self.bool(item.is_some());
        if let Some(item) = item {
            write(self, item);
        }
        self
    }
}

pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

type Read<T> = Result<T, Malformed>;

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn malformed<T>(&self, what: impl Into<String>) -> Read<T> {
        Err(Malformed {
            what: what.into(),
            at: self.at,
        })
    }

    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        match self.bytes[self.at..].get(..count) {
            Some(taken) => {
                self.at += count;
                Ok(taken)
            }
            None => self.malformed(format!(
                "{count} bytes should come, and {} are left",
                self.bytes.len() - self.at
            )),
        }
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Read<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Read<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Read<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Read<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Read<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Read<i64> {
        self.array().map(i64::from_be_bytes)
    }

    pub(crate) fn f64(&mut self) -> Read<f64> {
        self.array().map(f64::from_be_bytes)
    }

    pub(crate) fn bool(&mut self) -> Read<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => self.malformed(format!("a bool is 0 or 1, not {other}")),
        }
    }

    pub(crate) fn bytes(&mut self) -> Read<&'a [u8]> {
        let count = self.u32()?;
        self.take(count as usize)
    }

    pub(crate) fn string(&mut self) -> Read<String> {
        let bytes = self.bytes()?;
        match str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => self.malformed("a text is not UTF-8"),
        }
    }

    pub(crate) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let count = self.u32()? as usize;
        // Every element takes a byte or more: no memory is set aside for what cannot be there.
        if count > self.bytes.len() - self.at {
            return self.malformed(format!(
                "a list of {count} in the {} bytes that are left",
                self.bytes.len() - self.at
            ));
        }
        (0..count).map(|_| read(self)).collect()
    }

    pub(crate) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Read<T>,
    ) -> Read<Option<T>> {
        Ok(if self.bool()? {
            Some(read(self)?)
        } else {
            None
        })
    }

    pub(crate) fn end(&self) -> Read<()> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            left => self.malformed(format!("{left} bytes come after the end")),
        }
    }
}
