//! The text form of certificates, and secrets on disk: readable by their owner only, and never overwritten.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
};

use super::IdentityError;

/// Bytes of a key file at most; ours are under 2 KiB.
const MAX_FILE: u64 = 64 << 10;

pub(super) fn cert_pem(der: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", der), config)
}

pub(super) fn write_secret(path: &Path, text: &str) -> Result<(), IdentityError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => IdentityError::Exists { path: path.to_owned() },
        _ => IdentityError::Write { path: path.to_owned(), reason: error.to_string() },
    };
    let mut file = options.open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

/// Puts a secret in a file's place, wholly or not at all.
pub(super) fn replace_secret(path: &Path, text: &str) -> Result<(), IdentityError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = Path::new(&temporary);
    // Of a process that died with the same number.
    drop(fs::remove_file(temporary));
    let put = write_secret(temporary, text).and_then(|()| {
        fs::rename(temporary, path)
            .map_err(|error| IdentityError::Write { path: path.to_owned(), reason: error.to_string() })
    });
    if put.is_err() {
        drop(fs::remove_file(temporary));
    }
    put
}

pub(super) fn read_secret(path: &Path) -> Result<String, IdentityError> {
    let failed = |reason: String| IdentityError::Read { path: path.to_owned(), reason };
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > MAX_FILE {
        return Err(failed(format!("it is larger than {MAX_FILE} bytes, so it is no key file")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_cannot_be_put_in_place_does_not_lie_about() {
        let folder = tempfile::tempdir().unwrap();
        // A folder that is not empty stands where the file should.
        let path = folder.path().join("node.pem");
        fs::create_dir_all(path.join("in the way")).unwrap();
        assert!(matches!(replace_secret(&path, "secret"), Err(IdentityError::Write { .. })));
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(left, [path]);
    }
}
