package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// libraryOf is what a build would have made, with a library that has one function.
func libraryOf(t *testing.T) *built {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: a library of a few bytes was not made")
	}
	dir := t.TempDir()
	source, b := filepath.Join(dir, "small.c"), programsOf(t)
	b.lib = filepath.Join(dir, libName)
	text := "int puts(const char *);\nint skep_version(void) { return puts(\"8\"); }\n"
	require.NoError(t, os.WriteFile(source, []byte(text), 0o600))
	_, err = output(dir, nil, cc, "-shared", "-fPIC", "-Wl,-soname,"+libName, "-o", b.lib, source)
	require.NoError(t, err)
	return b
}

// The library's archive is used where it is unpacked: pkg-config says where that is, and a program that is linked finds
// the library by the name that stays, not by the link.
func TestTheLibrarysArchiveWorksWhereItIsUnpacked(t *testing.T) {
	t.Parallel()
	b, out := libraryOf(t), t.TempDir()
	name, err := b.archiveLibskep(out)
	require.NoError(t, err)
	top := unpacked(t, filepath.Join(out, name))
	link, err := os.Readlink(filepath.Join(top, "lib", libLink))
	require.NoError(t, err)
	require.Equal(t, libName, link)
	flags := flagsOf(t, top)
	require.Contains(t, flags, "-I"+filepath.Join(top, "include"))

	source := filepath.Join(t.TempDir(), "small.c")
	text := "#include <skep.h>\nint main(void) { return skep_version() < 0; }\n"
	require.NoError(t, os.WriteFile(source, []byte(text), 0o600))
	require.Equal(t, "8", compiledAndRun(t, top, source))
}

// unpacked is the directory in an archive, unpacked.
func unpacked(t *testing.T, file string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	_, err = output(dir, nil, "tar", "-xf", file)
	require.NoError(t, err)
	return filepath.Join(dir, strings.TrimSuffix(filepath.Base(file), ".tar.gz"))
}

// flagsOf is what pkg-config says of the library that lies there, without dots on the way.
func flagsOf(t *testing.T, top string) []string {
	t.Helper()
	if _, err := exec.LookPath("pkg-config"); err != nil {
		t.Skip("pkg-config is not installed: skep.pc was written, not used")
	}
	env := []string{"PKG_CONFIG_PATH=" + filepath.Join(top, "lib/pkgconfig")}
	text, err := output(".", env, "pkg-config", "--cflags", "--libs", "skep")
	require.NoError(t, err)
	flags := strings.Fields(text)
	for i, f := range flags {
		if len(f) > 2 && f[2] == '/' {
			flags[i] = f[:2] + filepath.Clean(f[2:])
		}
	}
	return flags
}

// compiledAndRun is what a program in C says that is compiled as pkg-config says, and run beside the library.
func compiledAndRun(t *testing.T, top, source string, args ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	_, err := output(".", nil, "gcc", append([]string{"-o", program, source}, flagsOf(t, top)...)...)
	require.NoError(t, err)
	out, err := output(".", []string{"LD_LIBRARY_PATH=" + filepath.Join(top, "lib")}, program, args...)
	require.NoError(t, err)
	return out
}

// The Debian packages: the library alone, and what programs are compiled by, which needs that very library.
func TestTheLibrarysDebianPackages(t *testing.T) {
	t.Parallel()
	b, out := libraryOf(t), t.TempDir()
	names, err := debs(t.Logf)(b, out)
	require.NoError(t, err)
	require.Len(t, names, 4, "skep for two architectures, libskep1, libskep-dev")
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is not installed: packages were written, not read by it")
	}
	of := func(name string) string {
		return filepath.Join(out, name+"_"+b.version+"_"+runtime.GOARCH+".deb")
	}
	field := func(name, field string) string {
		text, err := output(out, nil, "dpkg-deb", "-f", of(name), field)
		require.NoError(t, err)
		return text
	}
	require.Regexp(t, `^libc6 \(>= 2\.\d+\)$`, field("libskep1", "Depends"))
	require.Equal(t, "libskep1 (= "+debVersion(b.version)+")", field("libskep-dev", "Depends"))
	for _, name := range []string{"libskep1", "libskep-dev"} {
		require.Equal(t, "same", field(name, "Multi-Arch"))
		_, err = output(out, nil, "dpkg-deb", "-x", of(name), filepath.Join(out, "root"))
		require.NoError(t, err)
	}
	lib := filepath.Join(out, "root", libs())
	link, err := os.Readlink(filepath.Join(lib, libLink))
	require.NoError(t, err)
	require.Equal(t, libName, link)
	require.Equal(t, read(t, b.lib), read(t, filepath.Join(lib, libLink)))
	require.Contains(t, read(t, filepath.Join(lib, "pkgconfig/skep.pc")), "prefix=${pcfiledir}/../../..\n",
		"below /usr, wherever the root is")
}
