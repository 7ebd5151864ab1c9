//go:build cuda && cgo && linux

#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>

// What gpu/fakecuda has beside a driver's functions, for tests; nothing on a driver.
void skep_fake(const char *what, uint64_t a, uint64_t b) {
	void (*f)(uint64_t, uint64_t) = dlsym(RTLD_DEFAULT, what);
	if (f) f(a, b);
}

int skep_fake_left(void) {
	int (*f)(void) = dlsym(RTLD_DEFAULT, "skep_fake_reset");
	return f ? f() : 0;
}
