//go:build race

package storm

const raced = true
