package main

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Where the chart and the manifests lie in the source.
const (
	chartDir     = "tools/deploy/helm/skep"
	manifestsDir = "tools/deploy/kubernetes"
)

// Lines of the tree in whose place what is handed out has the version.
const (
	chartVersion    = "\nversion: 0.1.0\n"
	chartAppVersion = "\nappVersion: latest\n"
	manifestImage   = "image: skep:latest"
)

// charts writes the chart as helm package does: its version, and the image it starts, are those of the commit.
func charts(b *built, out string) ([]string, error) {
	entries, err := tree(filepath.Join(b.dir, chartDir))
	if err != nil {
		return nil, err
	}
	for i := range entries {
		if e := &entries[i]; e.name == "Chart.yaml" {
			e.text, err = b.instead(e.from, chartVersion, "\nversion: "+b.version+"\n",
				chartAppVersion, "\nappVersion: "+tag(b.version)+"\n")
			if err != nil {
				return nil, err
			}
			e.from = ""
		}
		entries[i].name = path.Join("skep", entries[i].name)
	}
	entries = append(entries, entry{name: "skep", mode: 0o755})
	name := "skep-" + b.version + ".tgz"
	return []string{name}, writeCompressed(out, name, entries, b.time)
}

// manifests are those of a directory examples/kubernetes, which start the image of the commit.
func (b *built) manifests() (entries []entry, err error) {
	entries, err = tree(filepath.Join(b.dir, manifestsDir))
	if err != nil {
		return nil, err
	}
	for i := range entries {
		e := &entries[i]
		text, err := os.ReadFile(e.from)
		if err != nil {
			return nil, err
		}
		e.name, e.from = path.Join("examples/kubernetes", e.name), ""
		e.text = []byte(strings.ReplaceAll(string(text), manifestImage, "image: skep:"+tag(b.version)))
	}
	return entries, nil
}

// instead is a file with each line that is named replaced by the one after it: all of them must be there, once.
func (b *built) instead(file string, pairs ...string) ([]byte, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	text := string(raw)
	for i := 0; i < len(pairs); i += 2 {
		if n := strings.Count(text, pairs[i]); n != 1 {
			return nil, fmt.Errorf("%s has the line %q %d times, must have it once", file, strings.TrimSpace(pairs[i]), n)
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return []byte(text), nil
}
