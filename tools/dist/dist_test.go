package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	re "regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// root is the repository, seen from here.
const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

// programsOf is what a build would have made, with programs that are a few bytes.
func programsOf(t *testing.T) *built {
	t.Helper()
	dir := t.TempDir()
	b := &built{
		source: source{dir: root, time: time.Unix(1_700_000_000, 0).UTC()}, version: "0.0.0-20260101000000-0123456789ab",
		bin: map[string]map[string]string{}, made: filepath.Join(dir, "made"), noLib: "this is a test",
	}
	write := func(path, text string) string {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, arch := range arches {
		b.bin[arch] = map[string]string{}
		for _, p := range programs {
			b.bin[arch][p] = write(filepath.Join(dir, arch, p), p+" of "+arch)
		}
	}
	for _, name := range []string{madeSettings, madeBash, madeZsh, madeFish} {
		write(filepath.Join(b.made, name), name)
	}
	return b
}

// all makes everything of it.
func all(t *testing.T, b *built) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	for _, f := range []func(*built, string) ([]string, error){archives, debs(t.Logf), image, charts} {
		n, err := f(b, dir)
		require.NoError(t, err)
		names = append(names, n...)
	}
	require.NoError(t, writeSums(dir, names))
	return dir, names
}

// What is made of the same programs is the same, whatever files' times and modes are, and whatever the order of maps.
func TestTheSameProgramsGiveTheSameBytes(t *testing.T) {
	t.Parallel()
	first, names := all(t, programsOf(t))
	want := read(t, filepath.Join(first, sums))
	require.Len(t, strings.Split(strings.TrimSpace(want), "\n"), len(names))
	require.Len(t, names, 6, "two archives, two packages, an image, a chart")
	for range 5 {
		again, _ := all(t, programsOf(t))
		require.Equal(t, want, read(t, filepath.Join(again, sums)))
	}
	have, err := os.ReadDir(first)
	require.NoError(t, err)
	require.Len(t, have, len(names)+1, "nothing else is left there")
	if _, err := exec.LookPath("sha256sum"); err != nil {
		t.Skip("sha256sum is not installed: the checksums were written, not checked by it")
	}
	_, err = output(first, nil, "sha256sum", "--strict", "-c", sums)
	require.NoError(t, err)
}

func TestEntriesAreSortedAndHaveOneTime(t *testing.T) {
	t.Parallel()
	a := []entry{
		{name: "d", mode: 0o755},
		{name: "d/b", text: []byte("b"), mode: 0o644},
		{name: "d/a", text: []byte("a"), mode: 0o755},
	}
	b := slices.Clone(a)
	slices.Reverse(b)
	var x, y bytes.Buffer
	at := time.Unix(1_700_000_000, 0)
	require.NoError(t, writeTar(&x, a, at))
	require.NoError(t, writeTar(&y, b, at))
	require.Equal(t, x.Bytes(), y.Bytes())
}

func TestDebVersionsAreOrderedAsVersionsAre(t *testing.T) {
	t.Parallel()
	// In the order of modules' versions.
	list := []string{
		"0.0.0-20260101000000-0123456789ab", "0.0.0-20260102000000-0123456789ab", "0.1.0-rc.1", "0.1.0",
		"0.1.1-0.20260103000000-0123456789ab", "0.1.1",
	}
	require.Equal(t, "0.1.1~0.20260103000000.0123456789ab", debVersion(list[4]))
	require.Equal(t, "0.1.0", debVersion(list[3]))
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("dpkg is not installed: versions were written, not compared by it")
	}
	for i := range len(list) - 1 {
		a, b := debVersion(list[i]), debVersion(list[i+1])
		_, err := output(".", nil, "dpkg", "--compare-versions", a, "lt", b)
		require.NoError(t, err, "%s before %s", a, b)
	}
}

// The package's unit is the repository's, but for where the program is and whose user it has.
func TestDebUnit(t *testing.T) {
	t.Parallel()
	text := read(t, filepath.Join(root, "tools/deploy/skep.service"))
	unit, err := debUnit(text)
	require.NoError(t, err)
	assert.NotContains(t, unit, "/usr/local")
	assert.Contains(t, unit, "\nExecStart=/usr/bin/skep serve --config /etc/skep/skep.yaml ")
	assert.NotContains(t, unit, "\nDynamicUser")
	var gone []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && !strings.Contains(unit, line) {
			gone = append(gone, strings.TrimSpace(line))
		}
	}
	assert.Len(t, gone, 2, "%v: ExecStart and DynamicUser", gone)
	for _, hardening := range []string{"User=skep", "StateDirectory=skep", "ProtectSystem=strict", "NoNewPrivileges=yes",
		"PrivateTmp=yes", "RemoveIPC=yes", "RestrictSUIDSGID=yes", "ProtectHome=yes"} {
		assert.Contains(t, unit, "\n"+hardening+"\n", "what DynamicUser brought along is said")
	}
	_, err = debUnit(strings.ReplaceAll(text, "DynamicUser=yes\n", ""))
	require.ErrorContains(t, err, "DynamicUser", "a unit that has become another one is noticed")

	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed: the unit was read, not verified")
	}
	file := filepath.Join(t.TempDir(), "skep.service")
	require.NoError(t, os.WriteFile(file, []byte(unit), 0o644))
	out, _ := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		assert.Contains(t, line, "/usr/bin/skep", "only the program may be missing: %s", line)
	}
}

func TestMaintainerScriptsAreShell(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		_, err := output(".", nil, "sh", "-n", filepath.Join(root, "tools/deploy/debian", name))
		require.NoError(t, err)
		for line := range strings.Lines(read(t, filepath.Join(root, "tools/deploy/debian", name))) {
			if strings.Contains(line, "echo") {
				continue
			}
			assert.NotRegexp(t, `systemctl.* (start|enable|restart)|rm -`, line, "nothing is started, no data is deleted")
		}
	}
}

func TestContainerfile(t *testing.T) {
	t.Parallel()
	text := read(t, filepath.Join(root, containerfile))
	r, err := parse(text)
	require.NoError(t, err)
	assert.Equal(t, v1.Config{
		User: "65532:65532", Env: []string{"SKEP_DIR=/data"}, StopSignal: "SIGTERM", Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/skep", "ready"}, Interval: 30 * time.Second, Timeout: 6 * time.Second, StartPeriod: 2 * time.Minute},
		Entrypoint:   []string{"/skep", "serve"},
		Volumes:      map[string]struct{}{"/data": {}},
		ExposedPorts: map[string]struct{}{"7420/tcp": {}, "7421/tcp": {}, "7422/tcp": {}},
	}, r.config)
	assert.Equal(t, []copied{{from: "/skep", to: "/skep"}, {from: "/data", to: "/data", uid: 65532, gid: 65532}}, r.copies)

	built := regexp(t, `CGO_ENABLED=0 go (.*) -o /skep ./tools/skep`, text)
	assert.Equal(t, strings.Join(buildArgs, " "), strings.ReplaceAll(built, `"`, ""), "a daemon builds the program as dist does")
	for _, wrong := range []string{
		"", "FROM debian\nUSER 1", "FROM scratch\nRUN x", "FROM scratch\nENV a=\"b c\"", "FROM scratch\nCOPY a",
		"FROM scratch\nCOPY --chmod=1 a b", "FROM scratch\nENTRYPOINT skep",
	} {
		_, err := parse(wrong)
		assert.Error(t, err, "%q", wrong)
	}
}

// The image has, for each architecture, what the Containerfile says: its settings, and these files alone.
func TestImageIsWhatTheContainerfileSays(t *testing.T) {
	t.Parallel()
	b := programsOf(t)
	out := t.TempDir()
	names, err := image(b, out)
	require.NoError(t, err)
	r, err := parse(read(t, filepath.Join(root, containerfile)))
	require.NoError(t, err)

	seen := map[string]bool{}
	for arch, img := range imagesIn(t, filepath.Join(out, names[0])) {
		f, err := img.ConfigFile()
		require.NoError(t, err)
		seen[arch] = true
		assert.Equal(t, []string{"linux", arch}, []string{f.OS, f.Architecture})
		assert.Equal(t, b.version, f.Config.Labels["org.opencontainers.image.version"])
		f.Config.Labels = nil
		assert.Equal(t, r.config, f.Config)
		assert.Equal(t, b.time, f.Created.UTC())

		to := t.TempDir()
		files := unpack(t, img, to)
		require.Len(t, files, len(r.copies))
		for _, c := range r.copies {
			h := files[strings.Trim(c.to, "/")]
			require.NotNil(t, h, c.to)
			assert.Equal(t, []int{c.uid, c.gid}, []int{h.Uid, h.Gid}, c.to)
			assert.Equal(t, int64(0o755), h.Mode, c.to)
		}
		assert.Equal(t, "skep of "+arch, read(t, filepath.Join(to, "skep")))
	}
	assert.Equal(t, map[string]bool{"amd64": true, "arm64": true}, seen)
}

// imagesIn are the images of a tar of an OCI layout, by architecture.
func imagesIn(t *testing.T, file string) map[string]v1.Image {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	untar(t, f, dir)
	top, err := layout.ImageIndexFromPath(dir)
	require.NoError(t, err)
	m, err := top.IndexManifest()
	require.NoError(t, err)
	require.Len(t, m.Manifests, 1)
	require.Regexp(t, "^skep:", m.Manifests[0].Annotations["org.opencontainers.image.ref.name"])
	index, err := top.ImageIndex(m.Manifests[0].Digest)
	require.NoError(t, err)
	if m, err = index.IndexManifest(); err != nil {
		t.Fatal(err)
	}
	out := map[string]v1.Image{}
	for _, d := range m.Manifests {
		out[d.Platform.Architecture], err = index.Image(d.Digest)
		require.NoError(t, err)
	}
	return out
}

// What README and the manual's first page link to lies in archives and packages where they look for it.
func TestTheManualComesWithTheProgram(t *testing.T) {
	t.Parallel()
	dir, names := all(t, programsOf(t))
	i := slices.IndexFunc(names, func(n string) bool { return strings.HasSuffix(n, "linux_amd64.tar.gz") })
	require.NotEqual(t, -1, i, "%v", names)
	f, err := os.Open(filepath.Join(dir, names[i]))
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	to := t.TempDir()
	require.NotEmpty(t, untar(t, z, to))
	places := map[string]string{"archive": filepath.Join(to, strings.TrimSuffix(names[i], ".tar.gz"))}
	if _, err := exec.LookPath("dpkg-deb"); err == nil {
		i := slices.IndexFunc(names, func(n string) bool {
			return strings.HasPrefix(n, "skep_") && strings.HasSuffix(n, "_amd64.deb")
		})
		require.NotEqual(t, -1, i, "%v", names)
		root := t.TempDir()
		_, err := output(dir, nil, "dpkg-deb", "-x", names[i], root)
		require.NoError(t, err)
		places["package"] = filepath.Join(root, "usr/share/doc/skep")
	} else {
		t.Log("dpkg-deb is not installed: the package was not looked into")
	}
	link := re.MustCompile(`\]\((docs/[^)#]+|(?:tutorials|howto|reference|explanation)/[^)#]+)`)
	for name, top := range places {
		for _, page := range []string{"README.md", "docs/README.md"} {
			found := link.FindAllStringSubmatch(read(t, filepath.Join(top, page)), -1)
			require.NotEmpty(t, found, "%s: %s", name, page)
			for _, m := range found {
				_, err := os.Stat(filepath.Join(top, filepath.Dir(page), m[1]))
				assert.NoError(t, err, "%s: a link of %s", name, page)
			}
		}
	}
}
