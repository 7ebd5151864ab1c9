package main

import (
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

const (
	maintainer = "the skep maintainers <maintainers@skep.invalid>"
	homepage   = "https://github.com/skepkv/skep"
	stateDir   = "/var/lib/skep" // StateDirectory of the unit
)

// sorted goes through a map by its keys in order.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// debVersion is a version as Debian orders them: what comes before a release sorts before it.
func debVersion(version string) string {
	before, after, pre := strings.Cut(version, "-")
	if !pre {
		return before
	}
	return before + "~" + strings.ReplaceAll(after, "-", ".")
}

// debUnit is the unit as the package has it: its program is where Debian's are, and its user is one that the package
// made, so that data have one owner, who outlives the service.
func debUnit(unit string) (string, error) {
	for _, c := range [][2]string{
		{"Put the binary at /usr/local/bin/skep, settings in\n", "Look at the settings in\n"},
		{" (skep config show prints a file to begin with)", ""},
		{"=/usr/local/bin/skep ", "=/usr/bin/skep "},
		{"DynamicUser=yes\n", ""},
	} {
		if strings.Count(unit, c[0]) != 1 {
			return "", fmt.Errorf("skep.service must have this once: %q", c[0])
		}
		unit = strings.Replace(unit, c[0], c[1], 1)
	}
	return unit, nil
}

// debs writes a package of the programs for each architecture, and those of the library for this machine's.
func debs(say func(string, ...any)) func(b *built, out string) ([]string, error) {
	return func(b *built, out string) (names []string, err error) {
		tmp, err := os.MkdirTemp("", "skep-deb-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(tmp)
		for arch := range sorted(b.bin) {
			info, err := b.debSkep(arch, tmp)
			if err == nil {
				err = b.writeDeb(info, out, &names)
			}
			if err != nil {
				return nil, err
			}
		}
		if b.lib == "" {
			say("libskep1, libskep-dev: not made: %s", b.noLib)
			return names, nil
		}
		for _, make := range []func(tmp string) (*nfpm.Info, error){b.debLibskep, b.debLibskepDev} {
			info, err := make(tmp)
			if err == nil {
				err = b.writeDeb(info, out, &names)
			}
			if err != nil {
				return nil, err
			}
		}
		return names, nil
	}
}

// debInfo is what every package says of itself.
func (b *built) debInfo(name, arch, description string) *nfpm.Info {
	return &nfpm.Info{
		Name: name, Arch: arch, Platform: "linux", Version: debVersion(b.version), VersionSchema: "none",
		Priority: "optional", Maintainer: maintainer, Homepage: homepage, License: "Apache-2.0", MTime: b.time,
		Description: description, DisableGlobbing: true,
	}
}

// content is a file of a package.
func content(from, to string, mode os.FileMode) *files.Content {
	info := &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode}
	return &files.Content{Source: from, Destination: to, FileInfo: info}
}

func (b *built) debSkep(arch, tmp string) (*nfpm.Info, error) {
	info := b.debInfo("skep", arch, "database for the KV caches of language models\n"+
		"skep keeps the KV cache of serving engines on local NVMe drives, and gives it back at their speed.\n"+
		"The package starts nothing: look at /etc/skep/skep.yaml, then systemctl enable --now skep.")
	info.Section = "database"
	info.Depends = []string{"passwd"}
	text, err := os.ReadFile(filepath.Join(b.dir, "tools/deploy/skep.service"))
	if err != nil {
		return nil, err
	}
	unit, err := debUnit(string(text))
	if err != nil {
		return nil, err
	}
	unitFile := filepath.Join(tmp, "skep.service")
	if err := os.WriteFile(unitFile, []byte(unit), 0o644); err != nil {
		return nil, err
	}
	settings := content(filepath.Join(b.made, madeSettings), "/etc/skep/skep.yaml", 0o640)
	settings.Type = files.TypeConfigNoReplace
	info.Contents = files.Contents{
		content(unitFile, "/usr/lib/systemd/system/skep.service", 0o644),
		settings,
		content(filepath.Join(b.made, madeBash), "/usr/share/bash-completion/completions/skep", 0o644),
		content(filepath.Join(b.made, madeZsh), "/usr/share/zsh/vendor-completions/_skep", 0o644),
		content(filepath.Join(b.made, madeFish), "/usr/share/fish/vendor_completions.d/skep.fish", 0o644),
		content(filepath.Join(b.dir, "LICENSE"), "/usr/share/doc/skep/copyright", 0o644),
		content(filepath.Join(b.dir, "README.md"), "/usr/share/doc/skep/README.md", 0o644),
		content(filepath.Join(b.dir, "tools/deploy/alerts.yaml"), "/usr/share/doc/skep/examples/alerts.yaml", 0o644),
		content(filepath.Join(b.dir, "tools/deploy/grafana.json"), "/usr/share/doc/skep/examples/grafana.json", 0o644),
		content(filepath.Join(b.dir, "CHANGELOG.md"), "/usr/share/doc/skep/CHANGELOG.md", 0o644),
	}
	for name, from := range sorted(b.bin[arch]) {
		info.Contents = append(info.Contents, content(from, "/usr/bin/"+name, 0o755))
	}
	manual, err := b.manual()
	if err != nil {
		return nil, err
	}
	for name, from := range sorted(manual) {
		info.Contents = append(info.Contents, content(from, "/usr/share/doc/skep/"+name, 0o644))
	}
	scripts := filepath.Join(b.dir, "tools/deploy/debian")
	info.Scripts = nfpm.Scripts{
		PostInstall: filepath.Join(scripts, "postinst"),
		PreRemove:   filepath.Join(scripts, "prerm"),
		PostRemove:  filepath.Join(scripts, "postrm"),
	}
	return info, nil
}

// writeDeb writes a package and adds its name.
func (b *built) writeDeb(info *nfpm.Info, out string, names *[]string) error {
	for _, c := range info.Contents {
		c.FileInfo.MTime = b.time
	}
	info.Deb.Compression = "xz"
	info = nfpm.WithDefaults(info)
	name := fmt.Sprintf("%s_%s_%s.deb", info.Name, b.version, info.Arch)
	if err := create(out, name, func(w io.Writer) error { return deb.Default.Package(info, w) }); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	*names = append(*names, name)
	return nil
}
