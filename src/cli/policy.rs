//! `policy sign` and `policy verify`: signatures of components, as requirements ask for them.
//!
//! The private key is read from its file and nowhere else; nothing here prints it.

use std::io::Write as _;
use std::path::Path;

use portcullis::config::policy_ref::{read_file, signature_file};
use portcullis::config::requirements::signers;
use portcullis::config::signature::{PrivateKey, PublicKey, Signature, keep_key, read_key};
use portcullis::model::digest::Digest;
use serde_json::json;

use super::args::{Format, Global, Sign, Verify};
use super::exit::{Exit, Trouble};
use super::render::{self, field};
use super::setup;

/// Signs a component.
pub(crate) fn sign(global: &Global, sign: &Sign) -> Result<Exit, Trouble> {
    // Before a key is made: a mistyped component leaves nothing behind.
    let digest = Digest::of(&read(&sign.file)?);
    let key = key(sign)?;
    let file = signature_file(&sign.file);
    let failed = |error: &dyn std::error::Error| {
        Trouble::new(Exit::Failed, format!("cannot write `{}`: {error}", setup::shown(&file)))
    };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Whole or not at all: a reader never sees half of a signature.
    let fresh = folder.join(format!(".{}.sig", uuid::Uuid::new_v4()));
    let written = std::fs::File::create_new(&fresh)
        .and_then(|mut out| out.write_all(key.sign(digest).as_bytes()).and_then(|()| out.sync_all()))
        .and_then(|()| std::fs::rename(&fresh, &file));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&fresh);
        return Err(failed(&error));
    }
    let public = key.public();
    match global.format {
        Format::Human => {
            let width = render::width();
            let rows = [
                ("signature:", setup::shown(&file)),
                ("sha256:", digest.to_string()),
                ("key:", public.id()),
                ("public key:", public.to_string()),
            ];
            render::data(&rows.map(|(label, text)| field(0, label, &text, width)).concat())?;
        }
        Format::Json => render::json(&json!({
            "signature": file,
            "sha256": digest,
            "key": public.id(),
            "public_key": public.to_string(),
        }))?,
    }
    Ok(Exit::Done)
}

/// Verifies the signature beside a component.
pub(crate) fn verify(global: &Global, verify: &Verify) -> Result<Exit, Trouble> {
    let digest = Digest::of(&read(&verify.file)?);
    let keys = match &verify.public {
        Some(text) => vec![PublicKey::parse(text).map_err(|error| Trouble::from_error(Exit::Usage, &error))?],
        None => signers(&setup::resolve(global, &setup::places()?)),
    };
    if keys.is_empty() {
        let hint = "give `--pub KEY`, or list keys in `[requirements.components]`";
        return Err(Trouble::new(Exit::Usage, "no key is known whose signature counts").hint(hint));
    }
    let refused = |error: &(dyn std::error::Error + 'static)| Trouble::from_error(Exit::Refused, error);
    let signature = Signature::parse(&read(&signature_file(&verify.file))?).map_err(|error| refused(&error))?;
    signature.verify(digest, &keys).map_err(|error| refused(&error))?;
    match global.format {
        Format::Human => render::data(&field(0, "verified:", &digest.to_string(), render::width()))?,
        Format::Json => render::json(&json!({ "verified": true, "sha256": digest }))?,
    }
    Ok(Exit::Done)
}

fn key(sign: &Sign) -> Result<PrivateKey, Trouble> {
    let usage = |error: &(dyn std::error::Error + 'static)| Trouble::from_error(Exit::Usage, error);
    if let Some(path) = &sign.new_key {
        let (key, text) = PrivateKey::generate().map_err(|error| Trouble::from_error(Exit::Failed, &error))?;
        keep_key(path, &text).map_err(|error| usage(&error))?;
        return Ok(key);
    }
    let path = sign.key.as_deref().unwrap_or(Path::new(""));
    let missing = || {
        let hint = "`--new-key FILE` makes one";
        Trouble::new(Exit::Usage, format!("there is no key file `{}`", setup::shown(path))).hint(hint)
    };
    read_key(path, setup::places()?.user).map_err(|error| usage(&error))?.ok_or_else(missing)
}

fn read(path: &Path) -> Result<Vec<u8>, Trouble> {
    let missing = || Trouble::new(Exit::Usage, format!("there is no file `{}`", setup::shown(path)));
    read_file(path).map_err(|error| Trouble::from_error(Exit::Usage, &error))?.ok_or_else(missing)
}
