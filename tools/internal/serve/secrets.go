package serve

import (
	"maps"
	"slices"

	"github.com/skepkv/skep/tools/internal/secret"
)

// secretFiles are the files that have a key, a token or a password in them.
func (c *Config) secretFiles() []string {
	paths := []string{c.TLS.Key, c.Peers.Key, c.Peers.TokenFile, c.Join.TokenFile, c.Store.EncryptionKeyFile,
		c.Bucket.KeyFile, c.Bucket.CredentialsFile}
	for _, cc := range c.Credentials {
		paths = append(paths, cc.TokenFile)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		paths = append(paths, c.Tenants[name].EncryptionKeyFile)
	}
	return slices.DeleteFunc(paths, func(p string) bool { return p == "" })
}

// tellOpenFiles warns of those that everybody on the machine may read.
func (s *server) tellOpenFiles(c *Config) {
	for _, path := range c.secretFiles() {
		if do := secret.Close(path); do != "" {
			s.log.Warn("everybody on this machine may read a file with a secret", "file", path, "next", do)
		}
	}
}
