package main

import (
	"bytes"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/skepkv/skep/tools/internal/serve"
)

const configurationHead = `# Settings of skep serve

<!-- Written by tools/docs from the code: make docs writes it anew. -->

A setting comes from a flag, else from the environment, else from the YAML file (` + "`--config FILE`, or `SKEP_CONFIG`" + `).
Its variable is ` + "`SKEP_` and its path in capitals: `SKEP_STORE_DRAM_BYTES` is `store.dram_bytes`" + `. An unknown setting of
the file is refused, and so is a variable that begins like a setting's or differs from one by a letter or two; those
that ` + "`token_env` or `encryption_key_env`" + ` name, and those that Kubernetes makes of services, are left alone. Sizes are
` + "`4096`, `64KiB`, `1.5GiB` or `2GB`, durations `10s` or `1m30s`" + `.

` + "[`skep config show`](cli.md#skep-config)" + ` prints them all, as a file to begin with. Relative paths in the file start at
its directory, others at the working directory.

On SIGHUP a running server reads the file again: credentials, tenants with limits and shares, and keys. Any other
setting that changed needs a restart, and the log names it.

## Settings

| setting, flag | default | meaning |
|---|---|---|
`

const configurationTail = `
## Credentials

Each entry of ` + "`credentials`" + ` has exactly one of the last five fields. [Secure a server](../howto/secure.md) has examples.

| field | meaning |
|---|---|
| ` + "`name`" + ` | name for people, the log and RESP's AUTH |
| ` + "`tenant`" + ` | whose blocks its holder reaches; ` + "`*`" + `: every tenant's |
| ` + "`rights`" + ` | any of ` + "`read`, `write`, `admin`" + ` |
| ` + "`expires`" + ` | RFC 3339; empty: never |
| ` + "`token_file`" + ` | a file that holds the token; it is read again when it changes |
| ` + "`token_env`" + ` | an environment variable that holds the token |
| ` + "`token_sha256`" + ` | SHA-256 of the token, in hexadecimal |
| ` + "`cert_name`" + ` | common name, DNS name or URI of a client certificate that ` + "`tls.client_ca`" + ` has signed |
| ` + "`cert_sha256`" + ` | SHA-256 of one client certificate, without a ` + "`client_ca`" + ` |

## Tenants

` + "`tenants`" + ` maps a tenant's name to its fields. A field that is absent, or 0, does not limit.

| field | meaning |
|---|---|
| ` + "`share`" + ` | bytes stored up to which the tenant's blocks are not evicted first; it refuses nothing. ` + "`bytes`" + ` is its old name |
| ` + "`requests_per_second`" + ` | calls a second |
| ` + "`bytes_per_second`" + ` | payload a second, in both directions |
| ` + "`connections`" + ` | connections at once |
| ` + "`encryption_key_file`" + ` | a file of keys: the tenant's payload is encrypted with the first |
| ` + "`encryption_key_env`" + ` | the same from an environment variable; at most one of the two |
`

// configuration is the page of settings.
func configuration(string) (string, error) {
	var text bytes.Buffer
	if err := serve.Default().Print(&text); err != nil {
		return "", err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text.Bytes(), &doc); err != nil {
		return "", err
	}
	flags := map[string]string{}
	for _, f := range serve.Flags() {
		flags[f.Path] = "`--" + f.Name + "`"
	}
	var b strings.Builder
	b.WriteString(configurationHead)
	settings(&b, "", doc.Content[0], flags)
	b.WriteString(configurationTail)
	return b.String(), nil
}

// settings writes a row for each setting below the mapping n, whose own path is prefix.
func settings(b *strings.Builder, prefix string, n *yaml.Node, flags map[string]string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		path := prefix + key.Value
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 {
			settings(b, path+".", value, flags)
			continue
		}
		is, name := "`"+value.Value+"`", "`"+path+"`"
		if value.Kind == yaml.MappingNode || path == "credentials" || value.Value == "" {
			is = ""
		}
		if flag := flags[path]; flag != "" {
			name += ", " + flag
		}
		doc := strings.TrimSpace(strings.ReplaceAll(key.HeadComment, "# ", ""))
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, is, doc)
	}
}
