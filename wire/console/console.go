package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed static
var static embed.FS

// types are the content types of what is embedded; the system's table may differ.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// Handler serves the console: index.html at the root, its files beside it.
func Handler() http.Handler {
	type file struct {
		body []byte
		etag string
	}
	files := map[string]file{}
	_ = fs.WalkDir(static, "static", func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			body, _ := static.ReadFile(p) // embedded: it is there
			sum := sha256.Sum256(body)
			files["/"+strings.TrimPrefix(p, "static/")] = file{body, `"` + hex.EncodeToString(sum[:8]) + `"`}
		}
		return err
	})
	files["/"] = files["/index.html"]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		f, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		ext := path.Ext(r.URL.Path)
		if ext == "" {
			ext = ".html"
		}
		h := w.Header()
		h.Set("Content-Type", types[ext])
		h.Set("ETag", f.etag)
		h.Set("Cache-Control", "no-cache")
		if r.Header.Get("If-None-Match") == f.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(f.body)
	})
}
