/* A llama-server for Windows as far as a model's process needs one: it takes --port, says that it is healthy, and
   answers every question with the same words. Built by mingw for the test under wine; it shares no code with the program. */
#include <winsock2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HEALTH[] = "{\"status\":\"ok\"}";
static const char CHAT[] =
    "{\"id\":\"1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"alpha\",\"choices\":[{\"index\":0,"
    "\"finish_reason\":\"stop\",\"message\":{\"role\":\"assistant\",\"content\":\"said on Windows\"}}],"
    "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":3,\"total_tokens\":6}}";

static void answer(SOCKET client) {
    char request[65536], head[256];
    int size = 0, got;
    const char *body, *end, *length;
    while ((got = recv(client, request + size, sizeof request - 1 - size, 0)) > 0) {
        size += got;
        request[size] = 0;
        end = strstr(request, "\r\n\r\n");
        length = strstr(request, "ontent-");
        while (length && _strnicmp(length, "ontent-length:", 14)) length = strstr(length + 1, "ontent-");
        if (end && (!length || length > end || size >= end + 4 - request + atoi(length + 14))) break;
    }
    if (got <= 0) return;
    body = strncmp(request, "GET ", 4) ? CHAT : HEALTH;
    sprintf(head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n",
            (int)strlen(body));
    send(client, head, (int)strlen(head), 0);
    send(client, body, (int)strlen(body), 0);
}

int main(int count, char **words) {
    WSADATA data;
    struct sockaddr_in here = {0};
    SOCKET server, client;
    int i;
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (i = 1; i + 1 < count; i++)
        if (!strcmp(words[i], "--port")) here.sin_port = htons((unsigned short)atoi(words[i + 1]));
    WSAStartup(MAKEWORD(2, 2), &data);
    server = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(server, (struct sockaddr *)&here, sizeof here) || listen(server, 16)) return 1;
    while ((client = accept(server, NULL, NULL)) != INVALID_SOCKET) {
        answer(client);
        shutdown(client, SD_SEND);
        closesocket(client);
    }
    return 0;
}
