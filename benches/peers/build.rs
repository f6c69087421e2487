//! What only the peers' own packages can tell: their versions, and the migrations of those that leave it to the application to apply
//! them. Both are read where cargo put the packages, so nothing of theirs is copied into this tree.

use serde_json::Value;
use std::{env, fs, path::Path, process::Command};

const VERSIONS: [&str; 6] = [
    "apalis-postgres",
    "awa",
    "graphile_worker",
    "outbox-core",
    "outbox-postgres",
    "sqlxmq",
];
const MIGRATIONS: [&str; 2] = ["outbox-postgres", "sqlxmq"];

fn main() {
    println!("cargo::rerun-if-changed=Cargo.lock");
    println!("cargo::rerun-if-changed=build.rs");
    let output = Command::new(env::var("CARGO").expect("cargo runs this"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .expect("cargo metadata");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let package = |name: &str| {
        let packages = metadata["packages"].as_array().expect("packages");
        packages
            .iter()
            .find(|p| p["name"] == name)
            .unwrap_or_else(|| panic!("{name} is not in Cargo.lock"))
    };
    for name in VERSIONS {
        let version = package(name)["version"].as_str().expect("a version");
        println!("cargo::rustc-env={}={version}", variable(name));
    }
    for name in MIGRATIONS {
        let manifest = package(name)["manifest_path"].as_str().expect("a path");
        let folder = Path::new(manifest).with_file_name("migrations");
        let mut files: Vec<_> = fs::read_dir(&folder)
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| {
                path.extension().is_some_and(|e| e == "sql") && !path.to_string_lossy().ends_with(".down.sql")
            })
            .collect();
        files.sort();
        let sql: String = files
            .iter()
            .map(|path| fs::read_to_string(path).expect("a migration") + "\n")
            .collect();
        let target = Path::new(&env::var("OUT_DIR").expect("a folder")).join(format!("{name}.sql"));
        fs::write(target, sql).expect("room");
    }
}

fn variable(name: &str) -> String {
    format!("VERSION_{}", name.replace('-', "_").to_uppercase())
}
