//! Text that came from outside, made fit to be stored and shown.
//!
//! No answer of a destination may make recording an outcome fail: databases refuse NUL in text, terminals obey control
//! characters, and an error page can be a megabyte. What is recorded is a clean, short excerpt.

/// The longest error text an attempt keeps, in characters.
pub const MAX_ERROR_CHARS: usize = 512;
/// The longest receipt an attempt keeps, in bytes.
pub const MAX_RECEIPT_BYTES: usize = 1024;
/// The longest outcome code an attempt keeps, in bytes.
pub const MAX_CODE_BYTES: usize = 64;

/// The error text as it is recorded: control characters (NUL among them) become spaces, at most 512 characters.
pub fn error_text(raw: &str) -> String {
    excerpt(raw, MAX_ERROR_CHARS)
}

/// The same for bytes that may not be UTF-8; what is not becomes U+FFFD.
pub fn error_bytes(raw: &[u8]) -> String {
    // Four bytes hold any character, so nothing past this can reach the excerpt.
    let head = &raw[..raw.len().min(MAX_ERROR_CHARS * 4)];
    error_text(&String::from_utf8_lossy(head))
}

/// A receipt as it is recorded: clean, at most 1 KiB, cut at a character.
pub fn receipt(raw: &str) -> String {
    cut_bytes(&clean(raw), MAX_RECEIPT_BYTES).to_owned()
}

/// An outcome code as it is recorded: clean, at most 64 bytes.
pub fn code(raw: &str) -> String {
    cut_bytes(&clean(raw), MAX_CODE_BYTES).to_owned()
}

/// At most `chars` characters of `raw`, without control characters.
pub fn excerpt(raw: &str, chars: usize) -> String {
    raw.chars().take(chars).map(visible).collect()
}

fn clean(raw: &str) -> String {
    raw.chars().take(MAX_RECEIPT_BYTES).map(visible).collect()
}

fn visible(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

fn cut_bytes(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nul_and_escapes_become_spaces() {
        assert_eq!(error_text("a\0b\x1b[31mc\n"), "a b [31mc ");
    }

    #[test]
    fn bad_utf8_is_kept_as_replacement_characters() {
        assert_eq!(error_bytes(b"ok \xff\xfe"), "ok \u{fffd}\u{fffd}");
    }

    #[test]
    fn a_megabyte_becomes_512_characters() {
        assert_eq!(error_text(&"ä".repeat(1 << 20)).chars().count(), 512);
        assert_eq!(error_bytes("ä".repeat(1 << 20).as_bytes()).chars().count(), 512);
    }

    #[test]
    fn receipts_are_cut_at_a_character() {
        assert_eq!(receipt(&"€".repeat(1000)).len(), 1023);
        assert_eq!(code(&"x".repeat(100)).len(), 64);
    }
}
