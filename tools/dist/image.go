package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// containerfile is where the image is described, for those who have a daemon and for this command.
const containerfile = "tools/deploy/Containerfile"

// image writes one image for all architectures: a tar of an OCI layout, as podman load and skopeo read it.
func image(b *built, out string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(b.dir, containerfile))
	if err != nil {
		return nil, err
	}
	recipe, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", containerfile, err)
	}
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for arch, bin := range sorted(b.bin) {
		img, err := b.imageOf(recipe, arch, bin["skep"])
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	tmp, err := os.MkdirTemp("", "skep-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	at, err := layout.Write(tmp, empty.Index)
	if err != nil {
		return nil, err
	}
	name := map[string]string{"org.opencontainers.image.ref.name": "skep:" + tag(b.version)}
	if err := at.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return nil, err
	}
	entries, err := tree(tmp)
	if err != nil {
		return nil, err
	}
	file := fmt.Sprintf("skep_%s_image.tar", b.version)
	return []string{file}, create(out, file, func(w io.Writer) error { return writeTar(w, entries, b.time) })
}

// tag is a version as the tag of an image, which has no plus sign.
func tag(version string) string { return strings.ReplaceAll(version, "+", "-") }

// imageOf is the image of one architecture.
func (b *built) imageOf(r recipe, arch, skep string) (v1.Image, error) {
	var entries []entry
	for _, c := range r.copies {
		e := entry{name: strings.TrimPrefix(c.to, "/"), mode: 0o755, uid: c.uid, gid: c.gid}
		switch c.from {
		case "/skep":
			e.from = skep
		case "/data": // an empty directory
		default:
			return nil, fmt.Errorf("COPY %s: not one of /skep and /data", c.from)
		}
		entries = append(entries, e)
	}
	var layer bytes.Buffer
	if err := writeTar(&layer, entries, b.time); err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	history := v1.History{CreatedBy: "skep", Created: v1.Time{Time: b.time}}
	img, err := mutate.Append(base, mutate.Addendum{Layer: l, History: history})
	if err != nil {
		return nil, err
	}
	f, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	f = f.DeepCopy()
	f.OS, f.Architecture, f.Created, f.Config = "linux", arch, v1.Time{Time: b.time}, *r.config.DeepCopy()
	f.Config.Labels = map[string]string{
		"org.opencontainers.image.version":  b.version,
		"org.opencontainers.image.source":   homepage,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	return mutate.ConfigFile(img, f)
}

// tree are the files below a directory.
func tree(dir string) (entries []entry, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		e := entry{name: filepath.ToSlash(rel), mode: 0o755}
		if !d.IsDir() {
			e.from, e.mode = path, 0o644
		}
		entries = append(entries, e)
		return nil
	})
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return entries, err
}
