package main

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/files"
)

// The library's names: the file that programs load, and the link to it by which they are linked.
const (
	libName = "libskep.so.1"
	libLink = "libskep.so"
)

// multiarch is the directory of libraries that Debian has for an architecture.
var multiarch = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// libskep builds the library for programs in C, for this machine's architecture: it needs cgo and a C compiler.
func (b *built) libskep(dir string) {
	switch _, here := b.bin[runtime.GOARCH]; {
	case runtime.GOOS != "linux":
		b.noLib = "this machine is not Linux"
		return
	case !here:
		b.noLib = "it is built for this machine's architecture only"
		return
	}
	// Without ids: they would depend on where this source lies, which the linker is told.
	script := filepath.Join(b.dir, "tools/libskep/build.sh")
	_, err := output(b.dir, pinned(runtime.GOARCH, true), script, dir, "-s -w -buildid=", "-Wl,--build-id=none")
	if err != nil {
		b.noLib = err.Error()
		return
	}
	b.lib = filepath.Join(dir, libName)
}

// pkgConfig is skep.pc, for a directory that is depth directories below the one that include is in. All in it is said
// from where it lies, so that what it is part of may lie anywhere.
func (b *built) pkgConfig(depth int) string {
	return fmt.Sprintf("prefix=${pcfiledir}%s\nlibdir=${pcfiledir}/..\nincludedir=${prefix}/include\n\nName: skep\n"+
		"Description: database for the KV caches of language models\nURL: %s\nVersion: %s\n"+
		"Libs: -L${libdir} -lskep\nCflags: -I${includedir}\n", strings.Repeat("/..", depth), homepage, b.version)
}

// archiveLibskep writes an archive of the library, with one directory in it, which is used where it is unpacked.
func (b *built) archiveLibskep(out string) (name string, err error) {
	top := fmt.Sprintf("libskep_%s_linux_%s", b.version, runtime.GOARCH)
	entries := []entry{
		{name: "", mode: 0o755},
		{name: "LICENSE", from: filepath.Join(b.dir, "LICENSE"), mode: 0o644},
		{name: "include", mode: 0o755},
		{name: "include/skep.h", from: filepath.Join(b.dir, "tools/libskep/skep.h"), mode: 0o644},
		{name: "lib", mode: 0o755},
		{name: "lib/" + libName, from: b.lib, mode: 0o644},
		{name: "lib/" + libLink, link: libName, mode: 0o777},
		{name: "lib/pkgconfig", mode: 0o755},
		{name: "lib/pkgconfig/skep.pc", text: []byte(b.pkgConfig(2)), mode: 0o644},
	}
	return writeArchive(out, top, entries, b.time)
}

// debLibskep is the package that programs need which are linked with the library.
func (b *built) debLibskep(string) (*nfpm.Info, error) {
	info := b.debInfo("libskep1", runtime.GOARCH, "database for the KV caches of language models: library\n"+
		"libskep.so.1 is the engine, and a client of servers, for programs in C and whatever can call C.")
	info.Section = "libs"
	glibc, err := glibcOf(b.lib)
	if err != nil {
		return nil, err
	}
	info.Depends = []string{"libc6 (>= " + glibc + ")"}
	info.Deb.Triggers.ActivateNoAwait = []string{"ldconfig"}
	info.Deb.Fields = map[string]string{"Multi-Arch": "same"}
	info.Contents = files.Contents{
		content(b.lib, libs()+"/"+libName, 0o644),
		content(filepath.Join(b.dir, "LICENSE"), "/usr/share/doc/libskep1/copyright", 0o644),
	}
	return info, nil
}

// debLibskepDev is the package that programs are compiled and linked by.
func (b *built) debLibskepDev(tmp string) (*nfpm.Info, error) {
	info := b.debInfo("libskep-dev", runtime.GOARCH, "database for the KV caches of language models: library for C\n"+
		"skep.h declares what libskep.so.1 has, and pkg-config skep says how programs are compiled and linked.")
	info.Section = "libdevel"
	info.Depends = []string{"libskep1 (= " + debVersion(b.version) + ")"}
	info.Deb.Fields = map[string]string{"Multi-Arch": "same"}
	pc := filepath.Join(tmp, "skep.pc")
	if err := os.WriteFile(pc, []byte(b.pkgConfig(3)), 0o644); err != nil {
		return nil, err
	}
	link := content(libName, libs()+"/"+libLink, 0o777)
	link.Type = files.TypeSymlink
	info.Contents = files.Contents{
		link,
		content(filepath.Join(b.dir, "tools/libskep/skep.h"), "/usr/include/skep.h", 0o644),
		content(pc, libs()+"/pkgconfig/skep.pc", 0o644),
		content(filepath.Join(b.dir, "LICENSE"), "/usr/share/doc/libskep-dev/copyright", 0o644),
	}
	return info, nil
}

// libs is the directory of libraries of this machine's architecture.
func libs() string { return "/usr/lib/" + multiarch[runtime.GOARCH] }

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
