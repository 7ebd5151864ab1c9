package serve

import (
	"maps"
	"path/filepath"
	"reflect"
	"slices"
)

// eachPath puts change's answer in place of every path in v, which may be set: fields with the tag path, but for those
// that are empty or have the tag's text, and all of Paths that are no number.
func eachPath(v reflect.Value, change func(string) string) {
	if p, ok := v.Addr().Interface().(*Paths); ok {
		if _, counts := p.number(); !counts {
			for i, path := range *p {
				(*p)[i] = change(path)
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			t, f := v.Type().Field(i), v.Field(i)
			none, is := t.Tag.Lookup("path")
			switch {
			case !t.IsExported():
			case !is:
				eachPath(f, change)
			case f.String() != "" && f.String() != none:
				f.SetString(change(f.String()))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachPath(v.Index(i), change)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(key))
			eachPath(e, change)
			v.SetMapIndex(key, e)
		}
	}
}

// from takes relative paths for such in dir.
func (c *Config) from(dir string) {
	eachPath(reflect.ValueOf(c).Elem(), func(path string) string {
		if filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(dir, path)
	})
}

// absolute is c with no path that depends on where the process runs.
func (c *Config) absolute() (_ *Config, err error) {
	out := *c
	out.Devices, out.Credentials, out.Tenants = slices.Clone(c.Devices), slices.Clone(c.Credentials), maps.Clone(c.Tenants)
	eachPath(reflect.ValueOf(&out).Elem(), func(path string) string {
		abs, e := filepath.Abs(path)
		if e != nil {
			err = e
		}
		return abs
	})
	return &out, err
}
