import { mount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import { chats } from "./lib/chats.svelte";

void chats.read(); // the answer is on its way while the page is built; it is read again when news of changes come
mount(App, { target: document.body });
