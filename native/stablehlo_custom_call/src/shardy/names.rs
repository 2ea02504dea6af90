//! Names of meshes and axes.

/// The first byte that XLA cannot carry in a name.
///
/// XLA writes the meshes into a string inside a string, with escapes at each level. Both plugins end
/// the process over a backslash, a byte above 0x7f, and some control characters.
pub(super) fn bad_byte(name: &[u8]) -> Option<u8> {
    name.iter()
        .copied()
        .find(|&byte| !matches!(byte, b' '..=b'~') || byte == b'\\')
}

/// What to do about [`bad_byte`].
pub(super) const REMEDY: &str =
    "XLA cannot carry it and may end the process; use printable ASCII without a backslash";

/// Whether a symbol needs no quotes.
pub(super) fn is_bare(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes
        .first()
        .is_some_and(|&byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.iter().all(|&byte| is_word_byte(byte))
}

pub(super) fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.')
}
