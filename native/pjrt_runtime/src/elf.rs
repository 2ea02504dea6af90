//! Whether a shared object is there as a whole.
//!
//! The dynamic loader maps a file that was cut off, as an interrupted copy is, and the process ends
//! when it reaches what is missing. Offsets are those of the ELF specification, 64-bit little-endian;
//! other files are left to the loader to refuse.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const PT_LOAD: u32 = 1;

/// Says what is wrong with the file, if it is one that the loader would not survive.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    // A name without a directory is looked up by the loader.
    let Ok(metadata) = std::fs::metadata(path) else {
        return Ok(());
    };
    // A pipe would be waited for, with no end.
    if !metadata.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let Ok(mut file) = File::open(path) else {
        return Ok(());
    };
    let needed = end(&mut file).unwrap_or(0);
    if needed > metadata.len() {
        return Err(format!(
            "it is cut off: it has {} bytes of {needed}",
            metadata.len()
        ));
    }
    Ok(())
}

/// The least length that the headers of an ELF file give it; `None` for other files.
fn end(file: &mut File) -> Option<u64> {
    let mut header = [0; HEADER];
    file.read_exact(&mut header).ok()?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let program_headers = u64_at(&header, 32)?;
    let section_headers = u64_at(&header, 40)?;
    let program_header_count = u16_at(&header, 56)?;
    let section_headers_end = section_headers
        .checked_add(u64::from(u16_at(&header, 58)?) * u64::from(u16_at(&header, 60)?))?;
    let program_headers_end =
        program_headers.checked_add(u64::from(program_header_count) * PROGRAM_HEADER as u64)?;
    let mut end = section_headers_end.max(program_headers_end);

    file.seek(SeekFrom::Start(program_headers)).ok()?;
    for _ in 0..program_header_count {
        let mut segment = [0; PROGRAM_HEADER];
        if file.read_exact(&mut segment).is_err() {
            break;
        }
        if u32_at(&segment, 0)? == PT_LOAD {
            end = end.max(u64_at(&segment, 8)?.checked_add(u64_at(&segment, 32)?)?);
        }
    }
    Some(end)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{libm_path, scratch};

    #[test]
    fn a_whole_shared_object_passes_and_a_text_is_left_to_the_loader() {
        assert_eq!(check(&libm_path()), Ok(()));
        assert_eq!(
            check(&scratch(
                "elf.txt",
                b"a text that is longer than a header of an ELF file is, by far"
            )),
            Ok(())
        );
        assert_eq!(check(Path::new("no-such-file")), Ok(()));
    }

    #[test]
    fn a_shared_object_that_was_cut_off_is_refused_at_any_length() {
        let whole = std::fs::read(libm_path()).unwrap();
        for length in [64, 100, 1000, 100_000, whole.len() - 1] {
            let path = scratch("cut.so", &whole[..length]);
            assert_eq!(
                check(&path),
                Err(format!(
                    "it is cut off: it has {length} bytes of {}",
                    end(&mut File::open(&path).unwrap()).unwrap()
                ))
            );
        }
    }

    #[test]
    fn a_directory_and_a_device_are_no_shared_objects() {
        for path in ["/", "/dev/null"] {
            assert_eq!(check(Path::new(path)), Err("it is no regular file".into()));
        }
    }
}
