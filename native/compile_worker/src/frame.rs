//! Frames: a length and so many bytes.

use std::io::{self, ErrorKind, Read, Write};

/// The longest frame that is read or written.
pub const LONGEST_FRAME: usize = 1 << 30;

/// Reads a frame; `None` where the input ends before one.
///
/// # Errors
/// Those of the input, which are `UnexpectedEof` where it ends within a frame, and `InvalidData` for a
/// frame that is longer than [`LONGEST_FRAME`].
pub fn read_frame(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    let mut filled = 0;
    while filled < length.len() {
        match input.read(&mut length[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > LONGEST_FRAME {
        return Err(too_long(length));
    }
    // The memory grows with what comes, not with what is promised.
    let mut frame = Vec::new();
    input.by_ref().take(length as u64).read_to_end(&mut frame)?;
    if frame.len() < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(frame))
}

/// Writes a frame and flushes.
///
/// # Errors
/// Those of the output, and `InvalidData` for a frame that is longer than [`LONGEST_FRAME`].
pub fn write_frame(output: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len())
        .ok()
        .filter(|_| frame.len() <= LONGEST_FRAME)
        .ok_or_else(|| too_long(frame.len()))?;
    output.write_all(&length.to_be_bytes())?;
    output.write_all(frame)?;
    output.flush()
}

fn too_long(length: usize) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("a frame of {length} bytes, and the longest has {LONGEST_FRAME}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written_until_the_input_ends() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, b"one").unwrap();
        write_frame(&mut bytes, b"").unwrap();
        assert_eq!(bytes, b"\0\0\0\x03one\0\0\0\0");
        let mut input = bytes.as_slice();
        assert_eq!(read_frame(&mut input).unwrap(), Some(b"one".to_vec()));
        assert_eq!(read_frame(&mut input).unwrap(), Some(vec![]));
        assert_eq!(read_frame(&mut input).unwrap(), None);
    }

    #[test]
    fn an_input_that_ends_within_a_frame_is_an_error() {
        for bytes in [&b"\0"[..], b"\0\0\0\x05four"] {
            let error = read_frame(&mut &*bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_length_beyond_the_longest_is_refused_before_anything_is_read() {
        let error = read_frame(&mut &b"\xff\xff\xff\xff"[..]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a frame of 4294967295 bytes, and the longest has 1073741824"
        );
    }
}
