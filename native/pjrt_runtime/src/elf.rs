//! Whether a shared object is there as a whole, and its parts are where it says.
//!
//! The dynamic loader maps a file that was cut off, as an interrupted copy is, and the process ends
//! when it reaches what is missing. It believes the program headers, too: where they are wrong, it
//! follows them anywhere. The section headers, which it does not read, say the same in other words and
//! lie at the end of the file, so that a file whose rest was never written shows in them. What is wrong
//! in the code or data itself does not show.
//!
//! Offsets and rules are those of the ELF specification, 64-bit little-endian; other files are left to
//! the loader to refuse.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PT_PHDR: u32 = 6;
const PT_TLS: u32 = 7;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PT_GNU_PROPERTY: u32 = 0x6474_e553;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

const SHT_DYNAMIC: u32 = 6;
const SHT_NOBITS: u32 = 8;
const SHF_WRITE: u64 = 1;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;
const SHF_TLS: u64 = 0x400;

/// Memory is mapped in pages: a segment may reach to the end of its last one.
const PAGE: u64 = 0x1_0000;

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
    let Some(header) = Header::read(&mut file) else {
        return Ok(());
    };
    let length = metadata.len();
    let cut_off = |needed: Option<u64>| match needed {
        Some(needed) if needed <= length => Ok(()),
        Some(needed) => Err(format!("it is cut off: it has {length} bytes of {needed}")),
        None => Err("it is damaged: its headers are nowhere in a file".to_owned()),
    };
    cut_off(header.end())?;
    let Some(segments) = header.segments(&mut file) else {
        return Ok(());
    };
    let ends = segments.iter().filter(|segment| segment.kind == PT_LOAD);
    cut_off(
        ends.map(Segment::file_end)
            .try_fold(0, |end, next| Some(next?.max(end))),
    )?;
    let Some(sections) = header.sections(&mut file) else {
        return Ok(());
    };
    consistent(&header, &segments, &sections).map_err(|reason| format!("it is damaged: {reason}"))
}

struct Header {
    program_headers: u64,
    program_header_count: u16,
    section_headers: u64,
    section_header_size: u16,
    section_header_count: u16,
}

impl Header {
    /// `None` for a file that is no ELF file of this kind.
    fn read(file: &mut File) -> Option<Self> {
        let mut bytes = [0; HEADER];
        file.read_exact(&mut bytes).ok()?;
        // What the loader refuses by itself is left to it.
        let is_ours = bytes.starts_with(b"\x7fELF\x02\x01")
            && usize::from(u16_at(&bytes, 54)?) == PROGRAM_HEADER;
        is_ours.then_some(())?;
        Some(Self {
            program_headers: u64_at(&bytes, 32)?,
            section_headers: u64_at(&bytes, 40)?,
            program_header_count: u16_at(&bytes, 56)?,
            section_header_size: u16_at(&bytes, 58)?,
            section_header_count: u16_at(&bytes, 60)?,
        })
    }

    /// The end of both tables.
    fn end(&self) -> Option<u64> {
        let programs = u64::from(self.program_header_count) * PROGRAM_HEADER as u64;
        let sections = u64::from(self.section_header_size) * u64::from(self.section_header_count);
        let programs = self.program_headers.checked_add(programs)?;
        Some(programs.max(self.section_headers.checked_add(sections)?))
    }

    fn segments(&self, file: &mut File) -> Option<Vec<Segment>> {
        file.seek(SeekFrom::Start(self.program_headers)).ok()?;
        let mut bytes = vec![0; usize::from(self.program_header_count) * PROGRAM_HEADER];
        file.read_exact(&mut bytes).ok()?;
        bytes
            .chunks_exact(PROGRAM_HEADER)
            .map(Segment::read)
            .collect()
    }

    /// None of a file that was stripped of them.
    fn sections(&self, file: &mut File) -> Option<Vec<Section>> {
        if self.section_headers == 0 && self.section_header_count == 0 {
            return None;
        }
        file.seek(SeekFrom::Start(self.section_headers)).ok()?;
        let size = usize::from(self.section_header_size);
        let mut bytes = vec![0; usize::from(self.section_header_count) * size];
        file.read_exact(&mut bytes).ok()?;
        // Of another size they are not read, and then the file is not consistent.
        let headers = bytes.chunks_exact(SECTION_HEADER);
        if size == SECTION_HEADER {
            headers.map(Section::read).collect()
        } else {
            Some(Vec::new())
        }
    }
}

/// What the loader maps, or reads where it is mapped.
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_size: u64,
    memory_size: u64,
}

impl Segment {
    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            kind: u32_at(bytes, 0)?,
            flags: u32_at(bytes, 4)?,
            offset: u64_at(bytes, 8)?,
            address: u64_at(bytes, 16)?,
            file_size: u64_at(bytes, 32)?,
            memory_size: u64_at(bytes, 40)?,
        })
    }

    fn file_end(&self) -> Option<u64> {
        self.offset.checked_add(self.file_size)
    }

    fn end(&self) -> Option<u64> {
        self.address.checked_add(self.memory_size)
    }

    /// Whether the bytes at an offset of the file are mapped here, to that address.
    fn maps(&self, offset: u64, address: u64, size: u64) -> bool {
        let within = |start: u64, whole: u64, at: u64| {
            let skipped = at.checked_sub(start)?;
            (size <= whole.checked_sub(skipped)?).then_some(skipped)
        };
        let skipped = within(self.address, self.file_size, address);
        skipped.is_some() && skipped == within(self.offset, self.file_size, offset)
    }

    fn covers(&self, address: u64, size: u64) -> bool {
        let end = address.checked_add(size);
        address >= self.address && end.is_some_and(|end| Some(end) <= self.end())
    }
}

struct Section {
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    size: u64,
}

impl Section {
    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            kind: u32_at(bytes, 4)?,
            flags: u64_at(bytes, 8)?,
            address: u64_at(bytes, 16)?,
            offset: u64_at(bytes, 24)?,
            size: u64_at(bytes, 32)?,
        })
    }

    fn is(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// The size of a page on the systems that have the smallest ones.
const SMALLEST_PAGE: u64 = 4096;

/// Whether what is mapped, and how, is what the sections need.
fn consistent(
    header: &Header,
    segments: &[Segment],
    sections: &[Section],
) -> Result<(), &'static str> {
    let ensure = |holds: bool, reason| if holds { Ok(()) } else { Err(reason) };
    let of = |kind| segments.iter().filter(move |segment| segment.kind == kind);
    // The first section is none, by the specification.
    let allocated = || {
        sections
            .iter()
            .filter(|section| section.is(SHF_ALLOC) && section.size > 0)
    };
    ensure(
        allocated().next().is_some(),
        "its section headers are empty, as those of a file that was not written to its end",
    )?;

    let mut end = 0;
    for load in of(PT_LOAD) {
        ensure(
            load.file_size <= load.memory_size && load.end().is_some() && load.address >= end,
            "its segments overlap or have no place in memory",
        )?;
        end = load.end().unwrap_or(end);
        let inside = allocated().filter(|section| load.covers(section.address, section.size));
        let needed = inside.map(Section::end).max().unwrap_or(load.address);
        let headers = load.address.saturating_add(load.file_size);
        ensure(
            end <= needed.max(headers).saturating_add(PAGE),
            "a segment is larger than all that is in it",
        )?;
    }

    for section in allocated() {
        // Of variables that each thread has, there is the beginning only.
        if section.kind == SHT_NOBITS && section.is(SHF_TLS) {
            continue;
        }
        let mapped = of(PT_LOAD).any(|load| {
            let place = if section.kind == SHT_NOBITS {
                load.covers(section.address, section.size)
            } else {
                load.maps(section.offset, section.address, section.size)
            };
            place
                && (load.flags & PF_R != 0 || section.is(SHF_EXECINSTR))
                && (load.flags & PF_X != 0 || !section.is(SHF_EXECINSTR))
                && (load.flags & PF_W != 0 || !section.is(SHF_WRITE))
        });
        ensure(mapped, "a section is not mapped where it should be")?;
    }

    for segment in segments {
        let is_read = matches!(
            segment.kind,
            PT_DYNAMIC | PT_NOTE | PT_PHDR | PT_TLS | PT_GNU_PROPERTY
        );
        let mapped = |load: &Segment| load.maps(segment.offset, segment.address, segment.file_size);
        ensure(
            !is_read || segment.file_size == 0 || of(PT_LOAD).any(mapped),
            "a segment that the loader reads is not mapped",
        )?;
    }
    ensure(
        of(PT_PHDR).all(|segment| segment.offset == header.program_headers),
        "the program headers are not where they should be",
    )?;
    let dynamic = sections
        .iter()
        .filter(|section| section.kind == SHT_DYNAMIC);
    ensure(
        dynamic
            .map(|section| (section.offset, section.address))
            .eq(of(PT_DYNAMIC).map(|segment| (segment.offset, segment.address))),
        "its dynamic section is not where it should be",
    )?;
    // Linkers put it at the beginning of a segment; some have it reach to the end of the last page. The
    // loader takes away the right to write to whole pages, so no other segment may have a part of them.
    let is_part = |relro: &Segment| {
        let own = of(PT_LOAD).any(|load| {
            let most = load.end().and_then(|end| end.checked_add(PAGE));
            load.flags & PF_W != 0
                && load.address == relro.address
                && relro.end().is_some_and(|end| Some(end) <= most)
        });
        let end = relro.end().unwrap_or(u64::MAX) & !(SMALLEST_PAGE - 1);
        let others = of(PT_LOAD).filter(|load| load.address > relro.address);
        own && others.into_iter().all(|load| load.address >= end)
    };
    ensure(
        of(PT_GNU_RELRO).all(is_part),
        "what is read-only after loading is no part of what is loaded",
    )?;
    let per_thread = || allocated().filter(|section| section.is(SHF_TLS));
    let start = per_thread().map(|section| section.address).min();
    let end = per_thread().map(Section::end).max();
    ensure(
        of(PT_TLS).all(|tls| {
            start == Some(tls.address)
                && tls.end() >= end
                && tls.end() <= end.map(|end| end.saturating_add(PAGE))
        }) && of(PT_TLS).count() == usize::from(start.is_some()),
        "the variables of threads are not where they should be",
    )
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
                    Header::read(&mut File::open(&path).unwrap())
                        .unwrap()
                        .end()
                        .unwrap()
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

    /// The library with one byte changed.
    fn changed(at: usize, byte: u8) -> Result<(), String> {
        let mut bytes = std::fs::read(libm_path()).unwrap();
        assert_ne!(bytes[at], byte);
        bytes[at] = byte;
        check(&scratch("changed.so", &bytes))
    }

    /// Where the first program header of a kind is.
    fn program_header(kind: u32) -> usize {
        let bytes = std::fs::read(libm_path()).unwrap();
        let start = usize::try_from(u64_at(&bytes, 32).unwrap()).unwrap();
        let mut headers = (start..).step_by(PROGRAM_HEADER);
        headers
            .find(|&at| u32_at(&bytes, at) == Some(kind))
            .unwrap()
    }

    #[test]
    fn a_shared_object_whose_rest_was_never_written_is_refused() {
        let mut bytes = std::fs::read(libm_path()).unwrap();
        let half = bytes.len() / 2;
        bytes[half..].fill(0);
        assert_eq!(
            check(&scratch("zeros.so", &bytes)),
            Err(
                "it is damaged: its section headers are empty, as those of a file that was not \
                 written to its end"
                    .into()
            )
        );
    }

    #[test]
    fn program_headers_that_the_sections_contradict_are_refused() {
        let load = program_header(PT_LOAD);
        let dynamic = program_header(PT_DYNAMIC);
        for (at, byte) in [
            (load, 0x33),
            (load + 4, 0),
            (load + 18, 0x33),
            (load + 45, 0x33),
            (dynamic + 17, 0x55),
        ] {
            let error = changed(at, byte).unwrap_err();
            assert!(error.starts_with("it is damaged: "), "{at}: {error}");
        }
    }
}
