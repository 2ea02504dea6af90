//! Serialized executables: the plugin's own bytes behind a header that says where they can be read.
//!
//! All numbers are little-endian, a text is its length as `u32` and its bytes:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4 | [`FORMAT`] |
//! | 8 | length of the whole |
//! | 32 | SHA-256 of all that follows |
//! | | texts: version of this crate, and the [`Origin`]'s, in the order of its fields |
//! | | number of devices as `u32`, and their ids as `i32` |
//! | | the plugin's bytes, to the end |

use sha2::{Digest, Sha256};

use crate::client::Client;
use crate::error::Refusal;
use crate::Error;

const MAGIC: [u8; 8] = *b"PJRTEXE\0";
/// Counted up with every change of what follows it.
const FORMAT: u32 = 1;
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What has to be the same where an executable is written and where it is read. XLA checks little
/// of it: bytes of another build, or code for a processor with more instructions, end the process.
struct Origin {
    platform_name: String,
    platform_version: String,
    api_version: String,
    plugin_file: String,
    device_kinds: String,
    processor: String,
}

impl Origin {
    fn of(client: &Client) -> Result<Self, Error> {
        let plugin = client.plugin();
        let (major, minor) = plugin.api_version();
        let devices = client.devices().iter();
        let mut kinds: Vec<&str> = devices.map(|device| device.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        Ok(Self {
            platform_name: client.platform_name().to_owned(),
            platform_version: client.platform_version().to_owned(),
            api_version: format!("{major}.{minor}"),
            plugin_file: hex(&plugin.fingerprint()?),
            device_kinds: kinds.join(", "),
            processor: processor(),
        })
    }

    /// The fields in the order in which they are written.
    fn fields(&self) -> [(&'static str, &str); 6] {
        [
            ("platform", &self.platform_name),
            ("platform version", &self.platform_version),
            ("PJRT API version", &self.api_version),
            ("plugin file", &self.plugin_file),
            ("kind of devices", &self.device_kinds),
            ("processor", &self.processor),
        ]
    }
}

/// Puts the header before a plugin's bytes.
pub(crate) fn write(client: &Client, devices: &[i32], payload: &[u8]) -> Result<Vec<u8>, Error> {
    let origin = Origin::of(client)?;
    let mut body = Vec::with_capacity(payload.len() + 1024);
    put_text(&mut body, VERSION);
    for (_, text) in origin.fields() {
        put_text(&mut body, text);
    }
    body.extend_from_slice(&length(devices.len()).to_le_bytes());
    for id in devices {
        body.extend_from_slice(&id.to_le_bytes());
    }
    body.extend_from_slice(payload);
    Ok(seal(&body))
}

/// The fixed part, with length and checksum, and the body behind it.
fn seal(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&((HEADER + body.len()) as u64).to_le_bytes());
    bytes.extend_from_slice(&Sha256::digest(body));
    bytes.extend_from_slice(body);
    bytes
}

/// Bytes before the body.
const HEADER: usize = MAGIC.len() + 4 + 8 + 32;

/// The plugin's bytes, if they can be read by this client.
///
/// # Errors
/// [`Error::Refused`], [`Error::PluginUnreadable`].
pub(crate) fn read<'a>(client: &Client, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
    let mut body = Reader(open(bytes).map_err(Error::Refused)?);
    // The checksum matched, so a text that ends early was written so: by something else.
    let foreign = || Error::Refused(Refusal::Foreign);
    let version = body.text().ok_or_else(foreign)?;
    if version != VERSION {
        return Err(Error::Refused(Refusal::Package {
            expected: VERSION.to_owned(),
            found: version.to_owned(),
        }));
    }
    let origin = Origin::of(client)?;
    for (what, expected) in origin.fields() {
        let found = body.text().ok_or_else(foreign)?;
        if found != expected {
            return Err(Error::Refused(Refusal::Platform {
                what,
                expected: expected.to_owned(),
                found: found.to_owned(),
            }));
        }
    }
    let count = body.number().ok_or_else(foreign)?;
    let mut needed = Vec::new();
    for _ in 0..count {
        needed.push(body.number().ok_or_else(foreign)?.cast_signed());
    }
    let usable = client.devices().iter().filter(|device| device.addressable);
    let available: Vec<i32> = usable.map(|device| device.id).collect();
    if !needed.iter().all(|id| available.contains(id)) {
        return Err(Error::Refused(Refusal::Devices { needed, available }));
    }
    Ok(body.0)
}

/// The body, if it is whole and as it was written.
fn open(bytes: &[u8]) -> Result<&[u8], Refusal> {
    let mut rest = Reader(bytes);
    let magic = rest.take(MAGIC.len()).ok_or(Refusal::Foreign)?;
    if magic != MAGIC {
        return Err(Refusal::Foreign);
    }
    let short = || Refusal::Length {
        expected: HEADER as u64,
        found: bytes.len() as u64,
    };
    let format = rest.number().ok_or_else(short)?;
    if format != FORMAT {
        return Err(Refusal::Format {
            found: format,
            supported: FORMAT,
        });
    }
    let expected = rest.array().map(u64::from_le_bytes).ok_or_else(short)?;
    let checksum = rest.take(32).ok_or_else(short)?;
    if expected != bytes.len() as u64 {
        return Err(Refusal::Length {
            expected,
            found: bytes.len() as u64,
        });
    }
    if Sha256::digest(rest.0).as_slice() != checksum {
        return Err(Refusal::Damaged);
    }
    Ok(rest.0)
}

/// What is not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.number()?).ok()?;
        std::str::from_utf8(self.take(len)?).ok()
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&length(text.len()).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

/// Lengths of texts of a line or two, and of lists of devices.
fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The architecture, and on Linux a digest of the instruction sets that the kernel names: XLA's CPU
/// compiler uses whatever the processor has.
fn processor() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = |line: &str| {
        let (name, value) = line.split_once(':')?;
        matches!(name.trim(), "flags" | "Features" | "isa").then(|| value.trim().to_owned())
    };
    let flags = cpus.lines().find_map(names).unwrap_or_default();
    let mut flags: Vec<&str> = flags.split_ascii_whitespace().collect();
    flags.sort_unstable();
    let digest = hex(&Sha256::digest(flags.join(" "))[..8]);
    format!("{} {digest}", std::env::consts::ARCH)
}

#[cfg(test)]
mod tests;
