package places

import (
	"errors"
	"io/fs"
	"os"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/internal/segio"
)

// Free refuses, as a new device, a path where a file is that was there before, and, among the system's devices, where
// there is no block device: a file that is made there takes memory, and is gone when the machine starts again.
func Free(path string, custom bool) error {
	st, err := os.Stat(path)
	if !custom && paths.AmongDevices(path) && (err != nil || !paths.IsBlockDevice(st)) {
		e := &skep.Error{Op: "create device", Kind: skep.Missing, Field: "path", Value: path,
			Limit: "a block device that is there: nothing is made in " + paths.DeviceDir}
		if err == nil {
			e.Kind, e.Value = skep.Invalid, path+", a "+paths.FileType(st)
		}
		return e
	}
	switch {
	case err != nil && (errors.Is(err, fs.ErrNotExist) || custom):
		return nil
	case err != nil:
		return &skep.Error{Op: "create device", Kind: skep.Other, Field: "path", Value: path, Err: err}
	case !st.Mode().IsRegular():
		return nil
	}
	if sb, err := segio.PeekSuperblock(path); err == nil {
		return &skep.Error{Op: "create device", Kind: skep.Foreign, Field: path, Value: "store " + sb.Store.String(),
			Limit: "free; its catalog is not in this directory: bring it back, or remove the device files to begin anew"}
	}
	return &skep.Error{Op: "create device", Kind: skep.Foreign, Field: path, Value: "a file that is there already",
		Limit: "absent"}
}
