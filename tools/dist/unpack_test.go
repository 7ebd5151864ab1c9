package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	re "regexp"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"
)

// regexp is what the first group of an expression matches.
func regexp(t *testing.T, expression, text string) string {
	t.Helper()
	m := re.MustCompile(expression).FindStringSubmatch(text)
	require.NotNil(t, m, "%s", expression)
	return m[1]
}

// untar unpacks below a directory, and gives the headers by name, without a slash at the end. Owners are set where
// this process may.
func untar(t *testing.T, r io.Reader, dir string) map[string]*tar.Header {
	t.Helper()
	out := map[string]*tar.Header{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		require.True(t, filepath.IsLocal(h.Name), h.Name)
		path := filepath.Join(dir, h.Name)
		out[filepath.Clean(h.Name)] = h
		if h.Typeflag == tar.TypeDir {
			require.NoError(t, os.MkdirAll(path, 0o755))
		} else {
			f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			require.NoError(t, err)
			_, err = io.Copy(f, tr)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
		require.NoError(t, os.Chmod(path, h.FileInfo().Mode()))
		if os.Geteuid() == 0 {
			require.NoError(t, os.Lchown(path, h.Uid, h.Gid))
		}
	}
}

// unpack unpacks an image's file system.
func unpack(t *testing.T, img v1.Image, dir string) map[string]*tar.Header {
	t.Helper()
	layers, err := img.Layers()
	require.NoError(t, err)
	require.Len(t, layers, 1)
	r, err := layers[0].Uncompressed()
	require.NoError(t, err)
	defer r.Close()
	return untar(t, r, dir)
}
