package serve

import (
	"maps"
	"os"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// maxKeyBytes is the longest key file.
const maxKeyBytes = 64 << 10

// encryptionKeys reads the tenants' keys from where c says; "" is all other tenants.
// Errors name the file or variable, and never what is in it.
func (c *Config) encryptionKeys(environ func(string) (string, bool)) (keys map[string][]store.EncryptionKey, wrong []error) {
	keys = map[string][]store.EncryptionKey{}
	read := func(tenant, field, file, env string) {
		var text []byte
		var err error
		switch {
		case file != "" && env != "":
			err = problem("encryption_key_file and encryption_key_env", "both set", "one of them")
		case file != "":
			text, err = readFile(file, maxKeyBytes)
		case env != "":
			v, ok := environ(env)
			if text = []byte(v); !ok {
				err = problem("encryption_key_env", env+", which is not set", "a variable that is set")
			}
		default:
			return
		}
		if err == nil {
			keys[tenant], err = store.ParseEncryptionKeys(text)
		}
		if err != nil {
			wrong = append(wrong, &skep.Error{Op: "serve", Kind: skep.Invalid, Field: field, Err: err})
		}
	}
	read("", "store", c.Store.EncryptionKeyFile, "")
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		read(name, "tenants."+name, c.Tenants[name].EncryptionKeyFile, c.Tenants[name].EncryptionKeyEnv)
	}
	return keys, wrong
}

// tellEncrypted logs which tenants' payload is encrypted, and the name of its key.
func (s *server) tellEncrypted(keys map[string][]store.EncryptionKey) {
	for _, tenant := range slices.Sorted(maps.Keys(keys)) {
		name := tenant
		if name == "" {
			name = "all others"
		}
		s.log.Info("payload is encrypted at rest", "tenant", name, "key_id", keys[tenant][0].ID(), "older_keys", len(keys[tenant])-1)
	}
}

// replaceKeys gives the store the keys as they are now, where it takes some.
func (s *server) replaceKeys(next *Config) {
	st, ok := skep.As[*store.Store](s.st)
	if !ok {
		return
	}
	keys, wrong := next.encryptionKeys(os.LookupEnv)
	if len(wrong) == 0 {
		if err := st.SetEncryptionKeys(keys); err != nil {
			wrong = append(wrong, err)
		}
	}
	for _, err := range wrong {
		s.log.Error("encryption keys not reloaded: those in use stay", "error", err)
	}
	if len(wrong) == 0 {
		s.tellEncrypted(keys)
	}
}
