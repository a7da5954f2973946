/* What Finder starts, and what the command llama-appliance is a link to: the program for this kind of processor.

   Compiled for both kinds into one file, of which the system runs the right half. Under its own name, without words,
   it opens the page, and shows an alert if that fails: nobody sees the standard error of an app. Under any other name
   it becomes the program with the words as they are. */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <mach-o/dyld.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__arm64__)
#define KIND "arm64"
#else
#define KIND "x64"
#endif
#define OWN_NAME "llama-appliance-open"
#define ALERT                                                                                          \
    "display alert \"Llama Appliance does not start\" message \"Enter 'llama-appliance service open' " \
    "in Terminal to see why. Its log is ~/Library/Logs/llama-appliance/service.log.\" as critical"

extern char **environ;

int main(int count, char **words) {
    if (count < 1) return 1;
    char linked[PATH_MAX], own[PATH_MAX], program[PATH_MAX];
    uint32_t size = sizeof linked;
    if (_NSGetExecutablePath(linked, &size) != 0 || realpath(linked, own) == NULL ||
        snprintf(program, sizeof program, "%s/../Resources/%s/llama-appliance", dirname(own), KIND) >= PATH_MAX) {
        fprintf(stderr, "error: the program's own folder cannot be found; move the app to a shorter path\n");
        return 1;
    }
    const char *name = strrchr(words[0], '/');
    if (strcmp(name != NULL ? name + 1 : words[0], OWN_NAME) != 0) {
        words[0] = program;
        execv(program, words);
        fprintf(stderr, "error: %s cannot be started: %s; install the app again\n", program, strerror(errno));
        return 1;
    }
    char *open[] = {program, "service", "open", NULL};
    char *tell[] = {"/usr/bin/osascript", "-e", ALERT, NULL};
    pid_t child;
    int status = 1;
    if (posix_spawn(&child, program, NULL, NULL, open, environ) == 0) waitpid(child, &status, 0);
    if (status == 0) return 0;
    execv(tell[0], tell);
    return 1;
}
