//! YAML as JSON, read by the package that `make test` installs.

use serde_json::Value;

use crate::root;
use crate::snippets::fed;

const READER: &str = "const yaml = require('yaml'); let text = '';
    process.stdin.on('data', (part) => { text += part; });
    process.stdin.on('end', () => {
      const all = yaml.parseAllDocuments(text, { merge: true });
      for (const d of all) { if (d.errors.length) { console.error(d.errors[0].message); process.exitCode = 1; } }
      if (!process.exitCode) console.log(JSON.stringify(all.map((d) => d.toJS())));
    });";

/// The documents of a YAML text; `None` where no reader is installed.
pub(crate) fn documents(place: &str, text: &str) -> Option<Vec<Value>> {
    let installed = root().join("tests/node_modules/yaml").is_dir();
    let done = installed.then(|| fed("node", &["-e", READER], text));
    let Some(done) = done.flatten() else {
        eprintln!("SKIPPED: there is no node with `yaml`; `make test` installs them");
        return None;
    };
    assert!(done.status.success(), "{place}: {done:#?}");
    Some(serde_json::from_slice(&done.stdout).expect("JSON"))
}
