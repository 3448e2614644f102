//! `weir diff` of git revisions.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use expect_test::expect;
use tempfile::TempDir;

use crate::{check, command, stderr, stdout};

/// A repository in a temporary folder.
struct Repository(TempDir);

impl Repository {
    fn new() -> Self {
        let repository = Repository(tempfile::tempdir().unwrap());
        repository.git(&["init", "-q", "-b", "main", "."]);
        repository
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn git(&self, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.current_dir(self.path()).env("GIT_CONFIG_GLOBAL", "/dev/null");
        git.args(["-c", "user.name=test", "-c", "user.email=test@example.com"]);
        assert!(git.args(arguments).status().unwrap().success());
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn commit(&self) {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "test"]);
    }

    fn weir_in(&self, folder: &Path, arguments: &[&str]) -> Output {
        command().current_dir(folder).args(arguments).output().unwrap()
    }

    fn weir(&self, arguments: &[&str]) -> Output {
        self.weir_in(&self.path(), arguments)
    }
}

fn pod(name: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}}}, spec: {{containers: []}}}}\n"
    )
}

fn policy(from: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: db, namespace: shop}}, spec: {{podSelector: {{matchLabels: {{app: db}}}}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {from}}}}}}}]}}]}}}}\n"
    )
}

/// A repository whose branch `open` allows web to reach db.
fn shop() -> Repository {
    let repository = Repository::new();
    for name in ["web", "api", "db"] {
        repository.write(&format!("deploy/pods/{name}.yaml"), &pod(name));
    }
    repository.write("deploy/policy.yaml", &policy("api"));
    repository.write("deploy/README.md", "not: [a manifest");
    repository.write("deploy/.hidden.yaml", "not: [a manifest");
    repository.write("other/broken.yaml", "not: [a manifest");
    repository.commit();
    repository.git(&["checkout", "-q", "-b", "open"]);
    repository.write("deploy/policy.yaml", &policy("web"));
    repository.commit();
    repository.git(&["checkout", "-q", "main"]);
    repository
}

#[test]
fn two_revisions_are_compared_without_a_checkout() {
    let repository = shop();
    let output = repository.weir(&["diff", "git:main", "git:open", "--", "deploy/"]);
    check(
        &output,
        expect![[r#"
        opened
          +  shop/web  →  shop/db  any port
        closed
          -  shop/api  →  shop/db  any port
        --- exit 1
    "#]],
    );
    let again = repository.weir_in(
        &repository.path().join("deploy"),
        &["diff", "git:main", "git:open", "--", "policy.yaml", "pods"],
    );
    assert_eq!(stdout(&again), stdout(&output));
    let here =
        repository.weir_in(&repository.path().join("deploy"), &["diff", "git:main", "git:open"]);
    assert_eq!(stdout(&here), stdout(&output));
}

#[test]
fn a_revision_is_compared_with_the_working_tree() {
    let repository = shop();
    let output = repository.weir(&["diff", "git:open", "--", "deploy"]);
    check(
        &output,
        expect![[r#"
        opened
          +  shop/api  →  shop/db  any port
        closed
          -  shop/web  →  shop/db  any port
        --- exit 1
    "#]],
    );
    let output = repository.weir(&["diff", "git:HEAD", "--", "deploy"]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    repository.write("deploy/pods/web.yaml", "{");
    assert_eq!(repository.weir(&["diff", "git:HEAD", "--", "deploy"]).status.code(), Some(2));
}

#[test]
fn a_revision_can_be_combined_with_shared_files() {
    let repository = shop();
    let arguments =
        ["diff", "-f", "deploy/pods", "git:main", "git:open", "--", "deploy/policy.yaml"];
    let output = repository.weir(&arguments);
    assert!(stdout(&output).contains("shop/web  →  shop/db"), "{}", crate::text_of(&output));
}

#[test]
fn a_path_can_be_missing_on_one_side() {
    let repository = shop();
    repository.write("new/pod.yaml", &pod("new"));
    let output = repository.weir(&["diff", "git:main", "--", "deploy", "new"]);
    check(
        &output,
        expect![[r#"
            1 pod added: shop/new
              +  shop/new  →  shop/api, shop/web, outside  any port
              +  shop/api, shop/db, shop/web, outside  →  shop/new  any port
            --- stderr
            note: git:main has no manifests at new
            --- exit 1
        "#]],
    );
    check(
        &repository.weir(&["diff", "git:main", "--", "nowhere"]),
        expect![[r#"
        --- stderr
        error: no manifests at nowhere on either side
        hint: check the path; it is relative to the current folder
        --- exit 2
    "#]],
    );
}

#[test]
fn findings_name_the_revision() {
    let repository = shop();
    let output = repository.weir(&["diff", "git:main", "git:open", "--", "other"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("git:main:other/broken.yaml:"), "{}", stderr(&output));
}

#[test]
fn wrong_revisions_and_missing_programs_are_explained() {
    let repository = shop();
    for arguments in [
        &["diff", "git:nowhere", "--", "deploy"][..],
        &["diff", "git:--output=stolen", "--", "deploy"],
        &["diff", "git:", "--", "deploy"],
        &["diff", "git:main:deploy", "--", "deploy"],
        &["diff", "git:main", "deploy"],
        &["diff", "deploy", "--", "deploy"],
    ] {
        let output = repository.weir(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", crate::text_of(&output));
        assert!(stderr(&output).contains("hint: "), "{}", stderr(&output));
    }
    assert!(!repository.path().join("stolen").exists());
    check(
        &repository.weir(&["diff", "git:nowhere", "--", "deploy"]),
        expect![[r#"
        --- stderr
        error: this repository has no revision nowhere
        hint: check the name; CI systems often fetch only one commit, so fetch it first: `git fetch origin BRANCH`, then `git:FETCH_HEAD`
        --- exit 2
    "#]],
    );
    let mut without_git = command();
    without_git.current_dir(repository.path()).env("PATH", "/nowhere");
    let output = without_git.args(["diff", "git:main", "--", "deploy"]).output().unwrap();
    check(
        &output,
        expect![[r#"
        --- stderr
        error: cannot run the program git: No such file or directory (os error 2)
        hint: install git, or compare two folders
        --- exit 2
    "#]],
    );
    let outside = tempfile::tempdir().unwrap();
    let output = repository.weir_in(outside.path(), &["diff", "git:main", "--", "deploy"]);
    assert!(stderr(&output).contains("not a git repository"), "{}", stderr(&output));
}

#[cfg(unix)]
#[test]
fn the_content_of_a_repository_is_only_data() {
    let repository = shop();
    let secret = repository.path().join("secret");
    std::fs::write(&secret, pod("secret")).unwrap();
    std::os::unix::fs::symlink(&secret, repository.path().join("deploy/link.yaml")).unwrap();
    repository.write("deploy/-rf/--help.yaml", &pod("dash"));
    repository.write("deploy/new\nline \"quoted\".yaml", &pod("odd"));
    repository.git(&["checkout", "-q", "-b", "hostile"]);
    repository.git(&["add", "deploy"]);
    repository.git(&["commit", "-q", "-m", "hostile"]);
    let output = repository.weir(&["diff", "git:main", "git:hostile", "--", "deploy"]);
    let text = stdout(&output);
    assert!(text.contains("2 pods added: shop/dash, shop/odd"), "{}", crate::text_of(&output));
    assert!(stderr(&output).contains("git:hostile:deploy/link.yaml is a link and is not read"));
    let output = repository.weir(&["diff", "git:main", "git:hostile", "--", "deploy/-rf"]);
    assert!(stdout(&output).contains("1 pod added: shop/dash"), "{}", crate::text_of(&output));
}

#[test]
fn clusters_of_a_set_are_compared_together() {
    let repository = Repository::new();
    let example = |cluster: &str| {
        let file = crate::root().join(format!("examples/clusterset/{cluster}/shop.yaml"));
        std::fs::read_to_string(file).unwrap()
    };
    for cluster in ["east", "west"] {
        repository.write(&format!("{cluster}/shop.yaml"), &example(cluster));
    }
    repository.commit();
    // The policy of the east selects another pod of the west.
    let relabelled = example("west").replace("app: report", "app: api");
    repository.write("west/shop.yaml", &relabelled);
    let clusters = ["--cluster", "east=east", "--cluster", "west=west"];
    let opened = expect![[r#"
        opened
          +  west:shop/report  →  east:shop/db  5432/TCP
        --- exit 1
    "#]];
    check(&repository.weir(&[&["diff", "git:main"][..], &clusters].concat()), opened);
    let same = repository.weir(&[&["diff", ".", "."][..], &clusters].concat());
    assert_eq!(same.status.code(), Some(0), "{}", stdout(&same));
    let context = ["diff", ".", ".", "--cluster", "east=context:prod"];
    for (arguments, message) in [
        ([&["diff", "."][..], &clusters].concat(), "there is nothing to compare with"),
        (context.to_vec(), "weir diff compares manifests of clusters"),
        (
            [&["diff", "git:main"][..], &clusters, &["--", "east"]].concat(),
            "--cluster takes the place of paths after `--`",
        ),
    ] {
        let output = repository.weir(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(message), "{arguments:?}: {}", stderr(&output));
    }
}
