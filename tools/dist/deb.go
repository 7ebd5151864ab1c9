package main

import (
	"debug/elf"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
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

// multiarch is the directory of libraries that Debian has for an architecture.
var multiarch = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

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

// debs writes a package of the programs for each architecture, and one of the library for this machine's.
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
			say("libskep-dev: not made: %s", b.noLib)
			return names, nil
		}
		info, err := b.debLibskep(tmp)
		if err == nil {
			err = b.writeDeb(info, out, &names)
		}
		return names, err
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
		content(filepath.Join(b.dir, "CHANGELOG.md"), "/usr/share/doc/skep/CHANGELOG.md", 0o644),
	}
	for name, from := range sorted(b.bin[arch]) {
		info.Contents = append(info.Contents, content(from, "/usr/bin/"+name, 0o755))
	}
	scripts := filepath.Join(b.dir, "tools/deploy/debian")
	info.Scripts = nfpm.Scripts{
		PostInstall: filepath.Join(scripts, "postinst"),
		PreRemove:   filepath.Join(scripts, "prerm"),
		PostRemove:  filepath.Join(scripts, "postrm"),
	}
	return info, nil
}

func (b *built) debLibskep(tmp string) (*nfpm.Info, error) {
	libs := "/usr/lib/" + multiarch[runtime.GOARCH]
	info := b.debInfo("libskep-dev", runtime.GOARCH, "database for the KV caches of language models: library for C\n"+
		"libskep.so is the engine, and a client of servers, for programs in C and whatever can call C; skep.h declares it.")
	info.Section = "libdevel"
	glibc, err := glibcOf(b.lib)
	if err != nil {
		return nil, err
	}
	info.Depends = []string{"libc6 (>= " + glibc + ")"}
	info.Deb.Triggers.ActivateNoAwait = []string{"ldconfig"}
	pc := filepath.Join(tmp, "skep.pc")
	text := fmt.Sprintf("libdir=%s\nincludedir=/usr/include\n\nName: skep\n"+
		"Description: database for the KV caches of language models\nURL: %s\nVersion: %s\n"+
		"Libs: -L${libdir} -lskep\nCflags: -I${includedir}\n", libs, homepage, b.version)
	if err := os.WriteFile(pc, []byte(text), 0o644); err != nil {
		return nil, err
	}
	info.Contents = files.Contents{
		content(b.lib, libs+"/libskep.so", 0o644),
		content(filepath.Join(b.dir, "tools/libskep/skep.h"), "/usr/include/skep.h", 0o644),
		content(pc, libs+"/pkgconfig/skep.pc", 0o644),
		content(filepath.Join(b.dir, "LICENSE"), "/usr/share/doc/libskep-dev/copyright", 0o644),
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

// glibcOf is the oldest glibc that has all that a library asks of it.
func glibcOf(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil {
		return "", err
	}
	newest, major := 0, 2
	for _, s := range symbols {
		v, ok := strings.CutPrefix(s.Version, "GLIBC_2.")
		if !ok {
			continue
		}
		minor, _, _ := strings.Cut(v, ".")
		if n, err := strconv.Atoi(minor); err == nil && n > newest {
			newest = n
		}
	}
	if newest == 0 {
		return "", fmt.Errorf("%s asks for no glibc", filepath.Base(path))
	}
	return fmt.Sprintf("%d.%d", major, newest), nil
}
