//! Licences and known advisories of everything that is linked, checked offline against `.deny.toml`.

use std::process::Command;

use serde_json::Value;

fn strings(value: Option<&toml::Value>) -> Vec<String> {
    value
        .and_then(toml::Value::as_array)
        .map(|items| items.iter().filter_map(|item| item.as_str().map(str::to_string)).collect())
        .unwrap_or_default()
}

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Whether an SPDX expression can be met with allowed licences only.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    let expression = expression.replace('/', " OR ");
    expression.split(" OR ").any(|choice| {
        choice.split(" AND ").all(|part| {
            let part = part.trim().trim_matches(|c| c == '(' || c == ')').trim();
            let base = part.split(" WITH ").next().unwrap_or(part).trim();
            allowed.iter().any(|licence| licence == part || licence == base)
        })
    })
}

#[test]
fn every_licence_is_one_we_allow() {
    let policy: toml::Table = std::fs::read_to_string(".deny.toml").unwrap().parse().unwrap();
    let allowed = strings(policy["licenses"].get("allow"));
    assert!(allowed.contains(&"MIT".to_string()));
    assert!(!is_allowed("GPL-3.0", &allowed) && !is_allowed("MIT AND GPL-3.0", &allowed), "the check can fail");
    assert!(is_allowed("(MIT OR GPL-3.0) AND Apache-2.0", &allowed));
    let packages = packages();
    assert!(packages.len() > 100);
    let refused: Vec<String> = packages
        .iter()
        .filter(|package| !is_allowed(package["license"].as_str().unwrap_or("none"), &allowed))
        .map(|package| format!("{} {}: {}", package["name"], package["version"], package["license"]))
        .collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn banned_and_advised_packages_are_absent_or_excused() {
    let policy: toml::Table = std::fs::read_to_string(".deny.toml").unwrap().parse().unwrap();
    let banned: Vec<(String, String)> = policy["bans"]["deny"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["name"].as_str().unwrap().to_string(), entry["reason"].as_str().unwrap().to_string()))
        .collect();
    assert!(!banned.is_empty());
    let packages = packages();
    for (name, reason) in banned {
        assert!(!packages.iter().any(|package| package["name"] == name.as_str()), "{name}: {reason}");
    }
    // bincode is unmaintained: it must stay at the one release whose format we rely on, and its excuse must be written down.
    let bincode = packages.iter().find(|package| package["name"] == "bincode").unwrap();
    assert_eq!(bincode["version"], "2.0.1");
    let excused = policy["advisories"]["ignore"].as_array().unwrap();
    assert!(excused.iter().any(|entry| entry["reason"].as_str().is_some_and(|reason| reason.contains("bincode"))));
}
