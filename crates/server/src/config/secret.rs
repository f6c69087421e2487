//! Values that nobody may read over somebody's shoulder, and where they come from.

use std::{fmt, fs, io, path::Path};

/// Text that is not written anywhere by accident. Two are equal when what they hide is.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one who needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// More than any key or URL needs, and little enough to read at once.
const MOST_BYTES: u64 = 64 << 10;

/// Reads a secret from a file that nobody but its owner may read. The line end that editors add is not part of it.
pub fn from_file(path: &Path) -> Result<Secret, String> {
    let shown = path.display();
    let meta = fs::metadata(path).map_err(|e| cannot_read(path, &e))?;
    if !meta.is_file() {
        return Err(format!("{shown} is not a file"));
    }
    if let Some(mode) = too_open(&meta) {
        return Err(format!(
            "{shown} may be read by others (mode {mode:04o}); run: chmod 600 {shown}"
        ));
    }
    if meta.len() > MOST_BYTES {
        return Err(format!(
            "{shown} has {} bytes; a secret has {MOST_BYTES} at most",
            meta.len()
        ));
    }
    // What is not text is not repeated either.
    let text = fs::read_to_string(path).map_err(|e| cannot_read(path, &e))?;
    fit(text.trim_end_matches(['\r', '\n'])).map_err(|problem| format!("{shown} {problem}"))
}

/// A secret that can be used: not empty, one line.
pub fn fit(text: &str) -> Result<Secret, &'static str> {
    match text {
        "" => Err("is empty"),
        _ if text.contains('\u{fffd}') => Err("is not UTF-8"),
        _ if text.chars().any(char::is_control) => Err("holds a control character or more than one line"),
        _ => Ok(Secret::new(text)),
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "does not exist".to_owned(),
        io::ErrorKind::InvalidData => "is not text".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    format!("{} {why}", path.display())
}

/// The mode of a file that others than its owner may use.
#[cfg(unix)]
fn too_open(meta: &fs::Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt;
    let mode = meta.permissions().mode() & 0o7777;
    (mode & 0o077 != 0).then_some(mode)
}

/// Elsewhere permissions are not a mode, and are left to the administrator.
#[cfg(not(unix))]
fn too_open(_meta: &fs::Metadata) -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::new("s3cret");
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "*** Some(***)");
        assert_eq!(secret.expose(), "s3cret");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_read_is_refused_with_what_to_run() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, "s3cret\r\n").unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            match from_file(&path) {
                Ok(secret) => assert!(good && secret.expose() == "s3cret", "{mode:o}"),
                Err(problem) => assert!(!good && problem.contains("chmod 600 "), "{problem}"),
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_without_a_usable_secret_is_refused_and_not_repeated() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let cases: [(&[u8], &str); 4] = [
            (b"\n", "is empty"),
            (b"s3cret\ns3cret\n", "more than one line"),
            (b"s3cret\xff", "is not text"),
            (&[b'x'; 70_000], "at most"),
        ];
        for (content, part) in cases {
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let problem = from_file(&path).unwrap_err();
            assert!(problem.contains(part) && !problem.contains("s3cret"), "{problem}");
        }
        assert!(from_file(folder.path()).unwrap_err().contains("is not a file"));
        assert!(
            from_file(&folder.path().join("none"))
                .unwrap_err()
                .contains("does not exist")
        );
    }
}
