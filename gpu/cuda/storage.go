package cuda

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/skepkv/skep"
)

// DirectStorage says whether drives can write to GPU memory here (GPUDirect Storage): nil,
// or Unsupported with what is missing. skep does not use it: restores go through pinned
// memory, and need nothing of it.
func DirectStorage() error { return directStorage("/") }

func directStorage(root string) error {
	no := func(what, limit string) error {
		return &skep.Error{Op: "GPUDirect Storage", Kind: skep.Unsupported, Field: what, Value: "not there", Limit: limit}
	}
	if _, err := os.Stat(filepath.Join(root, "proc/driver/nvidia-fs")); err != nil {
		return no("kernel module nvidia-fs", "loaded")
	}
	libraries := []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/cuda/lib64"}
	for _, dir := range append(libraries, strings.Split(os.Getenv("LD_LIBRARY_PATH"), ":")...) {
		if found, _ := filepath.Glob(filepath.Join(root, dir, "libcufile.so*")); dir != "" && len(found) > 0 {
			return nil
		}
	}
	return no("libcufile.so", "installed")
}
