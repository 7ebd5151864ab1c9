package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
)

// pages are the files by path from the root, and who makes each.
func pages() map[string]func(root string) (string, error) {
	all := schemas()
	maps.Copy(all, map[string]func(string) (string, error){
		"docs/reference/configuration.md": configuration,
		"docs/reference/metrics.md":       metrics,
	})
	return all
}

func main() {
	for path, write := range pages() {
		text, err := write(".")
		if err == nil {
			err = os.WriteFile(filepath.FromSlash(path), []byte(text), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
