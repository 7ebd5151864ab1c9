package cli

import (
	"github.com/spf13/cobra"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// storeFlags are those of the commands that look after a store nobody has open.
type storeFlags struct {
	dir        string
	catalogDir string
	paths      []string
	dryRun     bool
	without    bool
	deep       bool
	rate       int64
}

func (f *storeFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.dir, "dir", "", "directory of the store (required)")
	fl.StringSliceVar(&f.paths, "device", nil,
		"where the store's devices are, in any order; default: where the catalog says, or device-* in --dir")
	fl.StringVar(&f.catalogDir, "catalog-dir", "",
		"directory of the catalog; default: where --dir says that it is, or catalog in it")
}

func (f *storeFlags) options(a *app, op string) (store.Options, error) {
	log, err := a.Logger()
	if err != nil {
		return store.Options{}, err
	}
	if f.dir == "" {
		return store.Options{}, skep.Invalidf(op, "--dir", "empty", "the directory of a store")
	}
	if f.rate < 0 {
		return store.Options{}, skep.Invalidf(op, "--rate", f.rate, "0 or more")
	}
	return store.Options{Dir: f.dir, CatalogDir: f.catalogDir, Devices: f.paths, CacheBytes: -1, IOBytes: 64 << 20,
		MustExist: true, WithoutKeys: true, Logger: log}, nil
}
